"""Cross-check calls on Unicorn and QEMU by sweep workers, each of which has two machines."""

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
from images.shell import at_system_call, with_test_program
from images.systems import with_disks
from kinst.verify.crosscheck import system_call_table
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.crosscheck import Crosscheck
from kinst.verify.crosscheck.faults import FaultyCrosscheck
from kinst.verify.crosscheck.lockstep import MAX_STEPS, Divergence, TooLongError
from kinst.verify.laboratory import finding
from kinst.verify.sweep.store import Kept
from kinst.verify.sweep.sweep import KeptTask
from kinst.verify.sweep.workers import check_identity

LIMIT = 1_000_000  # maximum number of instructions that a call executes
SYSTEM_STEPS = 100_000  # maximum number of instructions compared in a system call
WORDS = AGREES, DIFFERS, NOT_COMPARED, WAITED = (
    "agrees", "differs", "not compared", "waited too long")


@dataclass(frozen=True)
class Pair:
    """The kernel and the settings of the two machines, Unicorn and QEMU.

    :param memory: guest RAM in bytes.
    :param fault: fault to inject on the Unicorn machine; empty for none.
    :param identity: identity of the kernel with its modules; a worker with another one refuses.
    :param system: whether the calls are system calls made by a program.
    :param base: whether the base system that was fetched with the kernel is booted.
    """

    kernel: str
    modules: tuple[str, ...]
    memory: int
    fault: str
    identity: str = ""
    system: bool = False
    base: bool = False


@dataclass
class Checked:
    """The result of cross-checking one call.

    :param word: one of AGREES, DIFFERS, NOT_COMPARED, WAITED.
    :param report: details of a difference; empty otherwise.
    :param problem: why the call was not compared; empty otherwise.
    """

    call: str
    word: str
    agreed: Agreement = field(default_factory=Agreement)
    report: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class _Check:
    """Crosscheck of two machines through kernel function calls or through system calls.

    :param numbers: system call numbers by name; None when kernel functions are called.
    """

    crosscheck: Crosscheck
    numbers: dict[str, int] | None

    def caller(self, where: Machine) -> Caller:
        """Return an object that makes calls on one of the machines."""
        return (Caller(where, LIMIT) if self.numbers is None
                else SystemCaller(where, self.numbers, LIMIT))


@dataclass(frozen=True)
class CrosscheckTask(KeptTask[str, Checked, _Check]):
    """A task that makes each call on both machines and compares them."""

    pair: Pair

    def prepare(self) -> _Check:
        """Boot the kernel and prepare the cross-check.

        :raises KinstError: when the kernel cannot be booted, or is not the expected one.
        """
        pair = self.pair
        known: dict[str, int] | None = None
        image = with_disks(catalog.find(pair.kernel, pair.modules), [], pair.base)
        if pair.system:
            image = with_test_program(image)
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
        """Cross-check calls and return the result of each."""
        return [_checked(prepared, call) for call in items]

    def named(self, item: str) -> bytes:
        """Return the key under which a store keeps the result of a call."""
        return item.encode()

    def kept(self, item: str, result: Checked) -> Kept | None:
        """Convert a result for storage; return None if the result depends on the host's speed."""
        return None if result.word == WAITED else to_kept(result)

    def known(self, kept: Kept) -> Checked:
        """Convert a stored row back to a result.

        :raises ValueError: when the stored row is malformed.
        """
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
    """Describe an address: the function and offset, the instruction, and the source line."""
    function = machine.image.symbols.function_at(address)
    place: dict[str, object] = {"address": address}
    if function is not None:
        place["where"] = f"{function.name}+{address - function.address}"
    try:
        place["instruction"] = machine.arch.disassemble(machine.read(address, 15), address)
        place["line"] = Sources(machine.image).line(address)
    except (MemoryAccessError, DebugDataError):
        pass  # return only the address
    return place


def to_kept(one: Checked) -> Kept:
    """Convert a result to the form in which it is stored.

    It is a finding, so that ``kinst report`` can read it; a call that differs is wrong in state 0.
    """
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
    """Convert a stored result back from the form that ``to_kept`` returns.

    :raises ValueError: when the stored row is malformed.
    """
    stored = finding.from_kept(kept)
    try:
        row = json.loads(stored.note)
        report = row["report"]
        if stored.word not in WORDS or not (report == {} or _is_report(report)) or not (
                all(type(text) is str for text in (row["problem"], *row["functions"],
                                                   *row["reasons"]))
                and all(type(count) is int for count in row["reasons"].values())):
            raise ValueError("malformed cross-check result")
        agreed = Agreement(
            int(row["calls"]), int(row["instructions"]), int(row["firings"]),
            set(row["functions"]),
            {name: {bytes.fromhex(code) for code in codes}
             for name, codes in row["encodings"].items()},
            Counter({int(size): int(count) for size, count in row["lengths"].items()}),
            Counter(row["reasons"]), int(row["refused"]))
        return Checked(stored.code.decode(), stored.word, agreed, report, row["problem"])
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("malformed cross-check result") from error


def _is_report(row: Any) -> bool:
    """Return whether an object has the shape of a report made by ``_report``."""
    texts = [row["call"], row["what"], *(row[name] for name in ("where", "instruction", "line")
                                         if name in row)]
    return (type(row["address"]) is int and all(type(text) is str for text in texts)
            and all(type(one["name"]) is str and type(one["ours"]) is type(one["qemu"]) is int
                    for one in row["registers"]))
