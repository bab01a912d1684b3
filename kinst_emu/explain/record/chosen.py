"""Which instruction the wanted firing of a probe is at: a probe may be at several, as an inline
function's is in each of its copies, and may not fire each time that one is executed."""

from collections.abc import Callable
from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dtrace.descriptions.code_places import END, FORMS, code_places
from dwarf.debug_file import DebugDataError
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import Breakpoints, NativeState
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import Probe
from kinst.providers import fbt, inline
from kinst.providers.kinst_provider import PROVIDER as KINST
from kinst.relocation.trap import CpuState


@dataclass(frozen=True)
class ChosenPlace:
    """The instruction that a firing is at.

    :param hit: which execution of the instruction it is, from 1.
    :param probe: what was asked for, where that is an entry or a return; else empty.
    :param number: which of the probe's firings it is, and ``places`` at how many it may be.
    :param tail: whether the function leaves there by a tail call, so that the probe fires when the
        function that it goes to returns.
    """

    function: Symbol
    offset: int
    hit: int
    probe: str = ""
    number: int = 1
    places: int = 1
    tail: bool = False


def end_of(text: str) -> tuple[str, str, str, str] | None:
    """(provider, module, function, entry or return) of a text that asks for such a probe."""
    if found := END.fullmatch(text.strip()):
        return "", found["module"] or "", found["name"], found["end"]
    parts = text.strip().split(":")
    if len(parts) == 4 and parts[3] in inline.NAMES and parts[0] in ("", KINST, fbt.PROVIDER):
        return parts[0], parts[1], parts[2], parts[3]
    return None


def chosen(machine: UnicornMachine, image: Image, text: str, hit: int, run: Callable[[], object]
           ) -> ChosenPlace:
    """Where the firing is that is to be explained.

    :param machine: is as it was, afterwards; it may have been run when there are several places.
    :param hit: which firing of the probe, from 1.
    :param run: what makes it fire.
    :raises KinstError: when there is no such probe, or it does not fire that often.
    """
    end = end_of(text)
    if end is None:
        found = code_places(image, text)
        if len({place.address for place in found}) > 1:
            shown = ", ".join(str(place) for place in found[:5])
            raise KinstError(f"{text}: is at {len(found)} places; give one of {shown}"
                             + ", ..." * (len(found) > 5) + f" (a place is {FORMS})")
        return ChosenPlace(found[0].function, found[0].offset, hit)
    before = machine.snapshot()
    counted = _Counted(machine, image, *end)
    try:
        counted.breakpoints.enable()
        run()
    finally:
        counted.breakpoints.disable()
        machine.restore(before)
    return counted.firing(text, hit)


@dataclass
class _Executed:
    """An execution of an instruction.

    :param now: instructions executed before it.
    :param callers: the stack pointer that the function's caller has after the return, if the
        function leaves at this instruction.
    :param returned: whether the function has left here, and its callee has returned.
    """

    now: int
    callers: int
    returned: bool = False


class _Counted:
    """The probe, and one at each of its instructions that says when it is executed."""

    def __init__(self, machine: UnicornMachine, image: Image, provider: str, module: str,
                 function: str, name: str) -> None:
        self._machine = machine
        self._executed: dict[int, list[_Executed]] = {}  # by the instruction's address
        # Of each firing: where, the instructions before it; of a tail call, which execution of the
        # jump led to it, 0: none that was seen.
        self._fired: list[tuple[int, int, int | None]] = []
        self.breakpoints = breakpoints = Breakpoints(machine, self._fire)
        self._wanted = set(_made(breakpoints, image, provider, module, function, name))
        self._places = {breakpoints.probe(n).instruction.address: breakpoints.probe(n)
                        for n in self._wanted}
        for probe in self._places.values():
            breakpoints.add(breakpoints.functions[self._function_of(probe)], ProbeKind.OFFSET,
                            probe.instruction)

    def _function_of(self, probe: Probe) -> int:
        return int(self.breakpoints.dispatcher.probe(probe.id - 1)[2])

    def _fire(self, probe: Probe, state: CpuState | NativeState) -> None:
        at, now = probe.instruction.address, self._machine.instructions
        sp = state.get(self._machine.arch.sp)
        times = self._executed.setdefault(at, [])
        if probe.id - 1 not in self._wanted:
            times.append(_Executed(now, sp + self._machine.arch.return_size))
        elif self.breakpoints.dispatcher.after:
            # What left last returns first: the latest one with this caller's frame.
            found = [n for n, one in enumerate(times) if one.callers == sp and not one.returned]
            if found:
                times[found[-1]].returned = True
            self._fired.append((at, now, found[-1] + 1 if found else 0))
        else:
            self._fired.append((at, now, None))

    def firing(self, text: str, hit: int) -> ChosenPlace:
        if len(self._fired) < hit:
            times = {0: "never", 1: "once"}.get(len(self._fired), f"{len(self._fired)} times")
            raise KinstError(f"{text}: it fires {times} in this run, so that number {hit} cannot "
                             "be explained: give another call")
        at, when, left = self._fired[hit - 1]
        if left == 0:
            raise KinstError(f"{text}: firing {hit} cannot be explained: the jump by which its "
                             "function left was not seen in this run; give another call")
        probe = self._places[at]
        function = self.breakpoints.functions[self._function_of(probe)]
        executed = sum(1 for one in self._executed.get(at, ()) if one.now <= when)
        return ChosenPlace(function, probe.instruction.offset, left or max(executed, 1), text, hit,
                           len(self._places), tail=left is not None)


def _made(breakpoints: Breakpoints, image: Image, provider: str, module: str, function: str,
          name: str) -> list[int]:
    """The numbers of the probes of a function's entry or return, and of its inline copies'."""
    if provider != fbt.PROVIDER:
        try:
            return inline.create(breakpoints, debug_index(image), function, name,
                                 module=module).numbers
        except DebugDataError:
            pass  # there is none: FBT's alone
    return list(fbt.create(breakpoints, function, name, module=module))
