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

MAX_SHOWN = 10  # instructions that fail
HEX = re.compile(r"\s*(?:[0-9a-fA-F]{2}\s*){1,4096}")


def assert_relocates(
    arch: str, code: bytes | str, *, states: int = 2, seed: int = 1, host: bool = False,
    relocator: str | None = None,
) -> list[str]:
    """Assert that instructions do displaced what they do in place: registers, flags, memory, the
    next pc and faults, from random states.

    :param arch: ``amd64``, ``arm64`` or ``riscv64``.
    :param code: bytes, hexadecimal digits, or assembler (``"call *8(%r12)"``; not for riscv64).
    :param states: random states for each instruction.
    :param host: the host's own CPU is a judge, too (amd64 on an x86-64 host).
    :param relocator: a program that speaks the protocol of docs/trial.md is judged instead.
    :return: the verdict of each instruction: ``copy``, ``rewrite ...``, ``emulate ...``; also
        ``refuse: ...`` and ``not executed: ...``, which assert nothing.
    :raises AssertionError: when an instruction does not, with both states.
    :raises KinstError: for what is no instruction.
    """
    if arch not in ARCHITECTURES:
        raise KinstError(f"'{arch}' is not an architecture: {', '.join(ARCHITECTURES)}")
    codes = list(_instructions(arch, code))
    if relocator is not None:
        if host:
            raise KinstError("host=True judges our own relocation: leave it out with relocator=")
        found = judged(relocator, arch, codes, seed, states)
    else:
        found = tested(arch, codes, seed, states, host)
    wrong = [one.mismatch for one in found if one.mismatch is not None]
    if wrong:
        raise AssertionError("\n".join(_report(arch, wrong)))
    return [one.word for one in found]


def _instructions(arch: str, code: bytes | str) -> Iterable[bytes]:
    if isinstance(code, str):
        if not HEX.fullmatch(code):
            return [instruction for _text, instruction in assemble(arch, code)]
        code = bytes.fromhex(code)
    if not code:
        raise KinstError("there is no instruction to relocate")
    found = ARCHITECTURES[arch].split(code)
    for instruction in found:
        if ARCHITECTURES[arch].instruction_length(instruction) != len(instruction):
            raise KinstError(f"{instruction.hex(' ')}: is no whole instruction of {arch}")
    return found


def _report(arch: str, wrong: list[Mismatch]) -> Iterable[str]:
    for mismatch in wrong[:MAX_SHOWN]:
        text = ARCHITECTURES[arch].disassemble(mismatch.code, CODE)
        yield f"{mismatch.code.hex(' ')}  {text}  does not relocate ({mismatch.verdict})"
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
