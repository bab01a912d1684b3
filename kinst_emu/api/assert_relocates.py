"""An assertion for tests of instruction relocation."""

import re
from collections.abc import Iterable

from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from kinst.verify.laboratory.encodings import tested
from kinst.verify.laboratory.foreign import judged
from kinst.verify.laboratory.memory_map import CODE
from kinst.verify.laboratory.outcome import Mismatch
from kinst_emu.cli.assembler import assemble

MAX_SHOWN = 10  # maximum number of failing instructions in the error message
HEX = re.compile(r"\s*(?:[0-9a-fA-F]{2}\s*){1,4096}")


def assert_relocates(
    arch: str, code: bytes | str, *, states: int = 2, seed: int = 1, host: bool = False,
    relocator: str | None = None,
) -> list[str]:
    """Assert that each instruction has the same effects when displaced as in place.

    Each instruction is executed in place and displaced, from random states.  Registers, flags,
    memory, the next pc and faults must be equal.

    :param arch: ``amd64``, ``arm64`` or ``riscv64``.
    :param code: machine code as bytes or hexadecimal digits, or assembly source
        (``"call *8(%r12)"``; not for riscv64).
    :param states: number of random states for each instruction.
    :param seed: seed of the random states.
    :param host: compare with the host's CPU, too (amd64 on an x86-64 host).
    :param relocator: command of a program that speaks the protocol of docs/trial.md; it is tested
        instead of the built-in relocation.
    :return: the verdict of each instruction: ``copy``, ``rewrite ...`` or ``emulate ...``.
        The verdicts ``refuse: ...``, ``not executed: ...`` and ``unproven: ...`` assert nothing.
    :raises AssertionError: when an instruction behaves differently; the message has both states.
    :raises KinstError: when ``arch`` is unknown, or ``code`` is not valid machine code or assembly.
    """
    if arch not in ARCHITECTURES:
        raise KinstError(f"unknown architecture '{arch}': choose one of {', '.join(ARCHITECTURES)}")
    codes = list(_instructions(arch, code))
    if relocator is not None:
        if host:
            raise KinstError("host=True tests only the built-in relocation: leave out host= when "
                             "relocator= is given")
        findings = judged(relocator, arch, codes, seed, states)
    else:
        findings = tested(arch, codes, seed, states, host)
    wrong = [finding.mismatch for finding in findings if finding.mismatch is not None]
    if wrong:
        raise AssertionError("\n".join(_report(arch, wrong)))
    return [finding.word for finding in findings]


def _instructions(arch: str, code: bytes | str) -> Iterable[bytes]:
    if isinstance(code, str):
        if not HEX.fullmatch(code):
            return [instruction for _text, instruction in assemble(arch, code)]
        code = bytes.fromhex(code)
    if not code:
        raise KinstError("code is empty: give at least one instruction")
    instructions = ARCHITECTURES[arch].split(code)
    for instruction in instructions:
        if ARCHITECTURES[arch].instruction_length(instruction) != len(instruction):
            raise KinstError(f"{instruction.hex(' ')}: not a complete {arch} instruction")
    return instructions


def _report(arch: str, wrong: list[Mismatch]) -> Iterable[str]:
    for mismatch in wrong[:MAX_SHOWN]:
        text = ARCHITECTURES[arch].disassemble(mismatch.code, CODE)
        yield f"{mismatch.code.hex(' ')}  {text}  does not relocate correctly ({mismatch.verdict})"
        yield from (f"    {line}" for line in mismatch.differences())
        yield f"    in place:  {_state(mismatch, displaced=False)}"
        yield f"    {mismatch.how}: {_state(mismatch, displaced=True)}"
    if len(wrong) > MAX_SHOWN:
        yield f"and {len(wrong) - MAX_SHOWN} more instructions"


def _state(mismatch: Mismatch, displaced: bool) -> str:
    outcome = mismatch.displaced if displaced else mismatch.in_place
    registers = ", ".join(f"{name}={value:#x}" for name, value in outcome.registers.items())
    return (f"pc={outcome.pc:#x}, {registers}"
            + (f", fault: {outcome.fault}" if outcome.fault else ""))
