"""Which instruction the wanted firing of a probe is at: a probe may be at several, as an inline
function's is in each of its copies, and may not fire each time that one is executed."""

from collections.abc import Callable
from dataclasses import dataclass

from dtrace.code_places import END, FORMS, code_places
from dtrace.debug_index import debug_index
from dwarf.debug_file import DebugDataError
from emu.elf import Image
from emu.errors import KinstError
from emu.symbols import Symbol
from emu.unicorn.machine import UnicornMachine
from kinst import fbt, inline
from kinst.breakpoints import Breakpoints, NativeState
from kinst.kinst_provider import PROVIDER as KINST
from kinst.probe_table import Probe
from kinst.shared import ProbeKind
from kinst.trap import CpuState


@dataclass(frozen=True)
class ChosenPlace:
    """The instruction that a firing is at.

    :param hit: which execution of the instruction it is, from 1.
    :param probe: what was asked for, where that is an entry or a return; else empty.
    :param number: which of the probe's firings it is, and ``places`` at how many it may be.
    """

    function: Symbol
    offset: int
    hit: int
    probe: str = ""
    number: int = 1
    places: int = 1


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


class _Counted:
    """The probe, and one at each of its instructions that says when it is executed."""

    def __init__(self, machine: UnicornMachine, image: Image, provider: str, module: str,
                 function: str, name: str) -> None:
        self._machine = machine
        self._executed: dict[int, list[int]] = {}  # an instruction: the instructions before it
        self._fired: list[tuple[int, int]] = []
        self._later: set[int] = set()  # the numbers of those that fire behind their instruction
        self.breakpoints = breakpoints = Breakpoints(machine, self._fire)
        self._wanted = set(_made(breakpoints, image, provider, module, function, name))
        self._places = {breakpoints.probe(n).instruction.address: breakpoints.probe(n)
                        for n in self._wanted}
        for probe in self._places.values():
            breakpoints.add(breakpoints.functions[self._function_of(probe)], ProbeKind.OFFSET,
                            probe.instruction)

    def _function_of(self, probe: Probe) -> int:
        return int(self.breakpoints.dispatcher.probe(probe.id - 1)[2])

    def _fire(self, probe: Probe, _state: CpuState | NativeState) -> None:
        at, now = probe.instruction.address, self._machine.instructions
        if probe.id - 1 in self._wanted:
            self._fired.append((at, now))
            if self.breakpoints.dispatcher.firing_at != at:
                self._later.add(len(self._fired))
        else:
            self._executed.setdefault(at, []).append(now)

    def firing(self, text: str, hit: int) -> ChosenPlace:
        if len(self._fired) < hit:
            times = {0: "never", 1: "once"}.get(len(self._fired), f"{len(self._fired)} times")
            raise KinstError(f"{text}: it fires {times} in this run, so that number {hit} cannot "
                             "be explained: give another call")
        at, when = self._fired[hit - 1]
        probe = self._places[at]
        if hit in self._later:
            raise KinstError(
                f"{text}: firing {hit} is where the function that {probe.function}:"
                f"{probe.instruction.offset} goes to returns, at no breakpoint; "
                f"{probe.function}:{probe.instruction.offset} explains the instruction that leads "
                "there")
        function = self.breakpoints.functions[self._function_of(probe)]
        executed = sum(1 for now in self._executed.get(at, ()) if now <= when)
        return ChosenPlace(function, probe.instruction.offset, max(executed, 1), text, hit,
                           len(self._places))


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
