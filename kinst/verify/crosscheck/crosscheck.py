"""Cross-validation of calls on two machines: instruction by instruction, and with probes.

For each call, these must agree: (a) every instruction in lockstep; then, with probes on the
executed instructions, (b) the bytes of every trap frame at the seam, and (c) all registers at every
firing; and (d) the call's result and the memory it leaves, with and without probes.  The first
machine runs the guest trap path in Python, with which other tests compare the native path; the
second is QEMU.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from emu.machine.call import CallError, PatienceError
from emu.machine.machine import Machine
from emu.qemu.machine import QemuMachine
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot
from kinst.code.listing import ProbedInstruction
from kinst.probes.breakpoints import Breakpoints, Fire, NativeState
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import Probe, ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst.relocation.trap import CpuState
from kinst.relocation.verdict import Copy, Refuse, Rewrite, summary
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.comparison import CallComparison
from kinst.verify.crosscheck.event import DisplacedWrites, Event
from kinst.verify.crosscheck.lockstep import (
    MAX_STEPS,
    Divergence,
    ExecutionTrace,
    ModelPoint,
    TooLongError,
    follow,
    model_points,
    quiet,
    record,
)

# maximum number of probes, and of their firings, in one call
MAX_PROBES, MAX_FIRINGS = 300, 1200
# If every instruction is executed more than MAX_FIRINGS times, the one that is executed least often
# is probed, provided that it is executed at most this many times.
MOST_FIRINGS = 2 * MAX_FIRINGS
PROBED_PATIENCE = 30.0  # seconds to wait for QEMU's response in a call with probes

Workload = Callable[[Machine], int]
Value = TypeVar("Value")
Sites = dict[int, tuple[Symbol, ProbedInstruction]]  # address -> function and probed instruction


class Crosscheck:
    """Comparison of calls on a stopped machine with the same calls on QEMU.

    :param most: maximum number of instructions in a call that is compared.
    """

    def __init__(self, machine: UnicornMachine, most: int = MAX_STEPS) -> None:
        if machine.guest.traps.seam_of(machine.image) is None:
            raise ProbeError(f"{machine.image.path}: the kernel was built without DTrace hooks")
        self.machine, self._most = machine, most
        self._base: Snapshot = machine.snapshot()
        self.compare = CallComparison(machine, self._base)
        self._tables: dict[int, dict[int, ProbedInstruction]] = {}
        self._listing = ProbeTable(machine)
        # encodings of the instructions whose probes fired in at least one call
        self._fired: set[bytes] = set()

    def check(self, workload: Workload) -> Agreement:
        """Compare one call on both machines.

        :raises Divergence: when the machines do not agree.
        :raises TooLongError: when the call executes too many instructions.
        :raises PatienceError: when QEMU takes too long; the machines agree up to that point.
        :raises CallError: when the call fails on kinst-emu's machine.
        """
        machine = self.machine
        machine.restore(self._base)
        recording, value = record(machine, workload, self._most)
        memory, state = self.compare.changed_memory(), machine.cpu.state()
        machine.restore(self._base)
        points = model_points(machine, recording)
        agreement = Agreement(1, len(recording.steps))
        for point in points.values():
            agreement.reasons[point.reason] += len(point.results)
        self.compare.last = recording.steps[-1][recording.pc]
        with QemuMachine.carry(machine, self._base) as other:
            self.compare.value(value, self._on_qemu(
                lambda: follow(other, recording, points, workload)), "without probes")
            self.compare.state(state, other, self.compare.model.state)
            self.compare.memory_left(memory, other, recording.unequal)
        self._probed(workload, recording, points, agreement, value)
        machine.restore(self._base)
        return agreement

    def _on_qemu(self, run: Callable[[], Value]) -> Value:
        """Run a call on QEMU; report any failure except a timeout as a divergence."""
        try:
            return run()
        except PatienceError:
            raise
        except CallError as error:
            raise Divergence(f"the call fails on QEMU: {error}", self.compare.last, (), (), ()
                             ) from None

    # -- with probes ----------------------------------------------------------------------------

    def _probed(self, workload: Workload, recording: ExecutionTrace, points: dict[int, ModelPoint],
                found: Agreement, value: object) -> None:
        machine = self.machine
        sites = self._sites(recording, points, found)
        ours, result = self._run_ours(workload, sites, recording)
        self.gave(value, result)
        memory, state = self.compare.changed_memory(), machine.cpu.state()
        machine.restore(self._base)
        theirs: list[Event] = []
        with QemuMachine.carry(machine, self._base) as other:
            other.patience = PROBED_PATIENCE
            probes = SeamBreakpoints(other, functools.partial(self._fire, theirs))
            written = DisplacedWrites(other, recording)

            def trapped(address: int, frame: int) -> None:
                theirs.append(self._event(written, address, probes.second(address), frame))

            probes.trapped = trapped
            probes.stack_before = functools.partial(self.compare.stack_before, ours, theirs)
            _add(probes, sites)
            probes.enable()
            _Settle(other, points).install()
            failure: KinstError | None = None
            theirs_result: object = None
            try:
                theirs_result = workload(other)
            except (CallError, TooLongError) as error:
                failure = error
            self.compare.stops(ours, theirs, unfinished=isinstance(failure, PatienceError))
            if isinstance(failure, PatienceError):
                raise failure
            if failure is not None:
                raise Divergence(f"the call with probes fails on QEMU: {failure}",
                                 self.compare.last, (), (), ())
            probes.disable()
            self.compare.value(result, theirs_result, "with probes")
            model = self.compare.model
            self.compare.state(state, other, {**model.state, **model.trapped})
            self.compare.memory_left(memory, other, recording.unequal)
        fired = [event.site for event in ours if not event.second]
        for address in fired:
            instruction = sites[address][1]
            found.encodings.setdefault(summary(instruction.verdict), set()).add(instruction.code)
            found.lengths[len(probes.trap.breakpoint(len(instruction.code)))] += 1
        found.firings += len(fired)
        self._fired |= {sites[address][1].code for address in fired}

    def _event(self, written: DisplacedWrites, address: int, second: int | None,
               frame: int) -> Event:
        """Describe a stop at site ``address`` or at the second breakpoint of site ``second``."""
        machine = written.machine
        site, is_second = address if second is None else second, second is not None
        return Event(
            site, is_second, machine.read(frame, machine.guest.traps.trap_frame.size),
            written=written.at(site, is_second, self.compare.stack_pointer(machine, frame)))

    def _fire(self, seen: list[Event], probe: Probe, state: CpuState | NativeState) -> None:
        seen[-1].registers = tuple(state.get(name) for name in self.compare.names)
        if len(seen) > 4 * MOST_FIRINGS:
            raise TooLongError(f"the call with probes stops at the seam {len(seen)} times; "
                               f"the limit is {4 * MOST_FIRINGS}")

    def _sites(self, recording: ExecutionTrace, points: dict[int, ModelPoint],
               found: Agreement) -> Sites:
        """Choose the executed instructions to probe, within the limits for one call.

        Instructions on whose encoding no probe has fired yet come first.

        :raises TooLongError: when every instruction is executed too often.
        """
        symbols, exclusions = self.machine.image.symbols, self.machine.guest.traps.exclusions
        place, steps = recording.pc, recording.steps
        counts = Counter(step[place] for step in steps)
        after: dict[int, set[int]] = {}
        for step, following in itertools.pairwise(steps):
            after.setdefault(step[place], set()).add(following[place])
        candidates: list[tuple[bool, int, int, Symbol, ProbedInstruction]] = []
        for address, count in counts.items():
            function = symbols.function_at(address)
            if function is None or exclusions.reason(function.name):
                continue
            found.functions.add(function.name)
            instruction = self._table(function).get(address)
            if instruction is None or address in points:
                continue
            sequential = {address + len(instruction.code)}
            faults = (isinstance(instruction.verdict, Copy | Rewrite)
                      and after.get(address, sequential) != sequential)
            if isinstance(instruction.verdict, Refuse) or faults:
                # On QEMU, the kernel's fault handler would see the address of the trampoline.
                found.refused += 1
                continue
            seen = instruction.code in self._fired
            candidates.append((seen, count, address, function, instruction))
        candidates.sort(key=lambda c: c[:3])
        chosen: Sites = {}
        firings = 0
        for _seen, count, address, function, instruction in candidates:
            if len(chosen) < MAX_PROBES and firings + count <= MAX_FIRINGS:
                chosen[address] = function, instruction
                firings += count
        if not chosen:
            rare = min(candidates, key=lambda c: c[1], default=None)
            if rare is None:
                raise KinstError("the call executes no instruction that can be probed")
            if rare[1] > MOST_FIRINGS:
                raise TooLongError("cannot choose a probe: each instruction that can be probed is "
                                   f"executed more than {MOST_FIRINGS} times in this call; choose "
                                   "a shorter call")
            chosen[rare[2]] = rare[3], rare[4]
        return chosen

    def _table(self, function: Symbol) -> dict[int, ProbedInstruction]:
        if function.address not in self._tables:
            self._tables[function.address] = {
                i.address: i for i in self._listing.instructions(function)}
        return self._tables[function.address]

    def _run_ours(
        self, workload: Workload, sites: Sites,
        recording: ExecutionTrace,
    ) -> tuple[list[Event], object]:
        """Run the call with probes on kinst-emu's machine; return the call's stops and result."""
        machine = self.machine
        seen: list[Event] = []
        quiet(machine)
        breakpoints = self.breakpoints(functools.partial(self._fire, seen))
        written = DisplacedWrites(machine, recording)

        def trapped(address: int, frame: int) -> None:
            event = self._event(written, address, breakpoints.dispatcher.second(address), frame)
            event.stack = machine.engine.detour.kept_stack
            seen.append(event)

        breakpoints.trapped = trapped
        _add(breakpoints, sites)
        breakpoints.enable()
        result: int | None = None
        try:
            self.probed(breakpoints, sites)
            result = workload(machine)
        except (CallError, TooLongError) as error:
            self.failed(error)
        finally:
            if machine.engine.frozen:  # the call failed in a firing; the machine is restored later
                machine.engine.detour.abandon(machine.pc)
            breakpoints.disable()
        return seen, result

    # -- overridden by crosschecks with a fault -------------------------------------------------

    def breakpoints(self, fire: Fire) -> Breakpoints:
        """Create the breakpoints of kinst-emu's machine, which are handled in Python."""
        return Breakpoints(self.machine, fire, python=True)

    def probed(self, breakpoints: Breakpoints, sites: Sites) -> None:
        """Hook for subclasses, called before kinst-emu's machine runs with probes; does nothing."""

    def gave(self, value: object, result: object) -> None:
        """Compare a call's results with and without probes, both on kinst-emu's machine."""
        self.compare.value(value, result, "with and without probes, on kinst-emu's machine")

    def failed(self, error: CallError | TooLongError) -> None:
        """Raise the error with which a probed call failed on kinst-emu's machine."""
        raise error


class _Settle:
    """Correction of known model differences on a machine that is not single-stepped."""

    def __init__(self, machine: QemuMachine, points: dict[int, ModelPoint]) -> None:
        self._machine, self._points = machine, points
        self._count: Counter[int] = Counter()

    def install(self) -> None:
        for address in self._points:
            self._machine.handle(address, functools.partial(self._at, address))

    def _at(self, address: int) -> None:
        self._machine.step()
        self._points[address].settle(self._machine, self._count[address])
        self._count[address] += 1


def _add(probes: ProbeTable, sites: dict[int, tuple[Symbol, ProbedInstruction]]) -> None:
    for function, instruction in sites.values():
        probes.add(function, ProbeKind.OFFSET, instruction)
