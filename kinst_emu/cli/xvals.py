"""Calls cross-checked by the workers of a sweep, each of which has its own two machines."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dtrace.calls.calls import Evaluation, Statement, parse
from dtrace.debug.debug_data import Sources
from dwarf.debug_file import DebugDataError
from emu.host.errors import MemoryAccessError
from emu.machine.call import Caller, CallError, PatienceError
from emu.machine.machine import Machine
from emu.machine.system_call import SystemCaller, numbers
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import booted
from images.shell import at_system_call, with_userland
from kinst.verify.crosscheck import system_call_table
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.crosscheck import Crosscheck
from kinst.verify.crosscheck.faults import FaultyCrosscheck
from kinst.verify.crosscheck.lockstep import MAX_STEPS, Divergence, TooLongError
from kinst.verify.laboratory import finding
from kinst.verify.sweep.store import Kept
from kinst.verify.sweep.sweep import KeptTask
from kinst.verify.sweep.workers import check_identity

LIMIT = 1_000_000  # instructions of a call
SYSTEM_STEPS = 100_000  # of a system call that is compared: they do more
WORDS = AGREES, DIFFERS, NOT_COMPARED, WAITED = (
    "agrees", "differs", "not compared", "waited too long")


@dataclass(frozen=True)
class Pair:
    """A kernel, on our machine and on QEMU's.

    :param system: the calls are system calls, made by a program.
    """

    kernel: str
    modules: tuple[str, ...]
    memory: int
    fault: str
    identity: str = ""
    system: bool = False


@dataclass
class Checked:
    """What became of a call.

    :param word: one of AGREES, DIFFERS, NOT_COMPARED, WAITED.
    :param report: of a difference; ``problem`` why it was not compared.
    """

    call: str
    word: str
    agreed: Agreement = field(default_factory=Agreement)
    report: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class _Check:
    """:param numbers: of system calls; None: the calls are of the kernel's functions."""

    crosscheck: Crosscheck
    numbers: dict[str, int] | None

    def caller(self, where: Machine) -> Caller:
        return (Caller(where, LIMIT) if self.numbers is None
                else SystemCaller(where, self.numbers, LIMIT))


@dataclass(frozen=True)
class CrosscheckTask(KeptTask[str, Checked, _Check]):
    """Calls, each on both machines."""

    pair: Pair

    def prepare(self) -> _Check:
        pair = self.pair
        known: dict[str, int] | None = None
        image = catalog.find(pair.kernel, pair.modules)
        if pair.system:
            image = with_userland(image)
        check_identity(image, pair.identity)
        machine = booted(image, pair.memory)
        if pair.system:
            at_system_call(machine)
            known = numbers(machine)
            for line in system_call_table.PREPARED:
                Evaluation(SystemCaller(machine, known)).run(parse(line))
        machine.console.text.clear()
        most = SYSTEM_STEPS if pair.system else MAX_STEPS
        crosscheck = (FaultyCrosscheck(machine, pair.fault, most) if pair.fault
                      else Crosscheck(machine, most))
        return _Check(crosscheck, known)

    def results(self, prepared: _Check, items: Sequence[str]) -> list[Checked]:
        return [_checked(prepared, call) for call in items]

    def named(self, item: str) -> bytes:
        return item.encode()

    def kept(self, item: str, result: Checked) -> Kept | None:
        return None if result.word == WAITED else to_kept(result)

    def known(self, kept: Kept) -> Checked:
        return from_kept(kept)


def _checked(check: _Check, call: str) -> Checked:
    program = parse(call)

    def workload(where: Machine, program: list[Statement] = program) -> int:
        return Evaluation(check.caller(where)).run(program)

    try:
        return Checked(call, AGREES, check.crosscheck.check(workload))
    except Divergence as divergence:
        return Checked(call, DIFFERS, report=_report(check.crosscheck.machine, call, divergence))
    except PatienceError as error:
        return Checked(call, WAITED, problem=f"{call}: waited too long: {error}")
    except (TooLongError, CallError) as error:
        return Checked(call, NOT_COMPARED, problem=f"{call}: not compared: {error}")


def _report(machine: UnicornMachine, call: str, divergence: Divergence) -> dict[str, object]:
    return {
        "call": call, "what": divergence.what, **_place(machine, divergence.address),
        "registers": [
            {"name": name, "ours": ours, "qemu": theirs} for name, ours, theirs in zip(
                divergence.names, divergence.ours, divergence.theirs, strict=False)],
    }


def _place(machine: UnicornMachine, address: int) -> dict[str, object]:
    """Function and offset, instruction and source line of an address."""
    function = machine.image.symbols.function_at(address)
    found: dict[str, object] = {"address": address}
    if function is not None:
        found["where"] = f"{function.name}+{address - function.address}"
    try:
        found["instruction"] = machine.arch.disassemble(machine.read(address, 15), address)
        found["line"] = Sources(machine.image).line(address)
    except (MemoryAccessError, DebugDataError):
        pass  # the address alone says enough
    return found


def to_kept(one: Checked) -> Kept:
    """As a store keeps it, in the shape of findings, which ``kinst report`` reads: a call that
    differs is wrong in state 0."""
    agreed = one.agreed
    row = {"calls": agreed.calls, "instructions": agreed.instructions, "firings": agreed.firings,
           "functions": sorted(agreed.functions), "refused": agreed.refused,
           "encodings": {name: sorted(code.hex() for code in codes)
                         for name, codes in agreed.encodings.items()},
           "lengths": {str(size): count for size, count in agreed.lengths.items()},
           "reasons": dict(agreed.reasons), "report": one.report, "problem": one.problem}
    wrong = one.word == DIFFERS
    lines = (str(one.report.get("what", "")),) if wrong else ()
    return finding.to_kept(finding.Finding(
        one.call.encode(), one.word, 0 if wrong else None, lines=lines, note=json.dumps(row)))


def from_kept(kept: Kept) -> Checked:
    """What was checked, read from what ``to_kept`` has made of it.

    :raises ValueError: for what ``to_kept`` has not made.
    """
    one = finding.from_kept(kept)
    try:
        row = json.loads(one.note)
        report = row["report"]
        if one.word not in WORDS or not (report == {} or _is_report(report)) or not (
                all(type(text) is str for text in (row["problem"], *row["functions"],
                                                   *row["reasons"]))
                and all(type(count) is int for count in row["reasons"].values())):
            raise ValueError("a cross-check of another shape")
        agreed = Agreement(
            int(row["calls"]), int(row["instructions"]), int(row["firings"]),
            set(row["functions"]),
            {name: {bytes.fromhex(code) for code in codes}
             for name, codes in row["encodings"].items()},
            Counter({int(size): int(count) for size, count in row["lengths"].items()}),
            Counter(row["reasons"]), int(row["refused"]))
        return Checked(one.code.decode(), one.word, agreed, report, row["problem"])
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("a cross-check of another shape") from error


def _is_report(row: Any) -> bool:
    """Whether it is as ``_report`` makes them."""
    texts = [row["call"], row["what"], *(row[name] for name in ("where", "instruction", "line")
                                         if name in row)]
    return (type(row["address"]) is int and all(type(text) is str for text in texts)
            and all(type(one["name"]) is str and type(one["ours"]) is type(one["qemu"]) is int
                    for one in row["registers"]))
