"""Search for the instruction at which the requested firing of a probe happens.

A probe may cover several instructions, such as one in each copy of an inline function, and does not
always fire when one of them is executed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dtrace.descriptions.code_places import END, FORMS, code_places
from dwarf.debug_file import DebugDataError
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from emu.host.printable import counted
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import Breakpoints, NativeState
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import Probe
from kinst.providers import copy_ends, fbt, inline
from kinst.providers.kinst_provider import PROVIDER as KINST
from kinst.relocation.trap import CpuState


@dataclass(frozen=True)
class ChosenPlace:
    """The instruction at which a firing happens.

    :param hit: which execution of the instruction, from 1.
    :param probe: the requested probe, if it is an entry or a return; otherwise empty.
    :param number: which firing of the probe, from 1; ``places`` is the number of instructions that
        the probe covers.
    :param tail: whether the function leaves by a tail call there, so that the probe fires when the
        callee returns.
    """

    function: Symbol
    offset: int
    hit: int
    probe: str = ""
    number: int = 1
    places: int = 1
    tail: bool = False


def end_of(text: str) -> tuple[str, str, str, str] | None:
    """Parse an entry or return probe into (provider, module, function, "entry" or "return").

    Return None for any other text.
    """
    if match := END.fullmatch(text.strip()):
        return "", match["module"] or "", match["name"], match["end"]
    parts = text.strip().split(":")
    if len(parts) == 4 and parts[3] in copy_ends.NAMES and parts[0] in ("", KINST, fbt.PROVIDER):
        return parts[0], parts[1], parts[2], parts[3]
    return None


def chosen(machine: UnicornMachine, image: Image, text: str, hit: int, run: Callable[[], object]
           ) -> ChosenPlace:
    """Find the instruction at which the firing to explain happens.

    :param machine: executes ``run`` for an entry or return probe; its state is restored afterwards.
    :param hit: number of the firing, from 1.
    :param run: runs the workload that makes the probe fire.
    :raises KinstError: if the probe does not exist or fires fewer than ``hit`` times.
    """
    end = end_of(text)
    if end is None:
        candidates = code_places(image, text)
        if len({place.address for place in candidates}) > 1:
            shown = ", ".join(str(place) for place in candidates[:5])
            raise KinstError(f"{text}: matches {len(candidates)} places; choose one of {shown}"
                             + ", ..." * (len(candidates) > 5) + f" (a place is {FORMS})")
        return ChosenPlace(candidates[0].function, candidates[0].offset, hit)
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
    """One execution of a probed instruction.

    :param now: number of instructions executed before it.
    :param callers: the stack pointer of the function's caller after the return, if the function
        leaves at this instruction.
    :param returned: whether the function left here and its callee has returned.
    """

    now: int
    callers: int
    returned: bool = False


class _Counted:
    """Counter of a probe's firings and of the executions of its instructions.

    An additional probe on each instruction counts the executions.
    """

    def __init__(self, machine: UnicornMachine, image: Image, provider: str, module: str,
                 function: str, name: str) -> None:
        self._machine = machine
        self._executed: dict[int, list[_Executed]] = {}  # executions by instruction address
        # One tuple for each firing: the address, the instruction count and, if a tail call caused
        # the firing, the number of the tail call's execution (0 if not seen), otherwise None.
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
        address, now = probe.instruction.address, self._machine.instructions
        sp = state.get(self._machine.arch.sp)
        times = self._executed.setdefault(address, [])
        if probe.id - 1 not in self._wanted:
            times.append(_Executed(now, sp + self._machine.arch.return_size))
        elif self.breakpoints.dispatcher.after:
            # The most recent tail call returns first, so choose the latest matching execution.
            matches = [n for n, one in enumerate(times) if one.callers == sp and not one.returned]
            if matches:
                times[matches[-1]].returned = True
            self._fired.append((address, now, matches[-1] + 1 if matches else 0))
        else:
            self._fired.append((address, now, None))

    def firing(self, text: str, hit: int) -> ChosenPlace:
        """Return the instruction at which firing number ``hit`` happened.

        :raises KinstError: if there were fewer firings, or the execution of a tail call is unknown.
        """
        if len(self._fired) < hit:
            raise KinstError(f"{text}: --hit {hit}: the probe fires only "
                             f"{counted(len(self._fired), 'time')} in this run; choose another call"
                             f"{' or a smaller --hit' if self._fired else ''}")
        address, fired_at, jump = self._fired[hit - 1]
        if jump == 0:
            raise KinstError(f"{text}: --hit {hit}: the firing cannot be explained, because the "
                             "tail call that caused it was not seen in this run; choose another "
                             "call")
        probe = self._places[address]
        function = self.breakpoints.functions[self._function_of(probe)]
        count = sum(1 for one in self._executed.get(address, ()) if one.now <= fired_at)
        return ChosenPlace(function, probe.instruction.offset, jump or max(count, 1), text, hit,
                           len(self._places), tail=jump is not None)


def _made(breakpoints: Breakpoints, image: Image, provider: str, module: str, function: str,
          name: str) -> list[int]:
    """Create the probes for a function and its inline copies; return the probe numbers."""
    if provider != fbt.PROVIDER:
        try:
            return list(inline.create(breakpoints, debug_index(image), function, name,
                                      module=module).numbers)
        except DebugDataError:
            pass  # without debug data, inline copies are unknown: use only FBT's probes
    return list(fbt.create(breakpoints, function, name, module=module))
