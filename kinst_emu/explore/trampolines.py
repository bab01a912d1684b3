"""Breakpoints in the code of runs, with a trampoline for each thread or one for all threads."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from dtrace.descriptions.code_places import code_place
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import ProbeError
from kinst.probes.rewritten_trampolines import PER_THREAD, SHARED, RewrittenTrampolines
from kinst.probes.seam_breakpoints import Site
from kinst.relocation.verdict import Refuse
from kinst_emu.explore.accesses import ENTRY, STORE, Access
from kinst_emu.explore.threads import StartedRun

TRAMPOLINES = (PER_THREAD, SHARED)
MAX_EVENTS = 10_000  # maximum number of events recorded for a schedule
SIZE = 8  # number of bytes of a trampoline that count as accessed


class ProbedEvent(NamedTuple):
    """An event of a run at a breakpoint or in a trampoline.

    :param position: number of instructions that the machine executed before.
    :param at: address of the trampoline, or 0 without one.
    :param holds: instruction that was just written to the trampoline, or an empty string.
    """

    position: int
    run: int
    text: str
    at: int
    holds: str


class ProbedRuns:
    """Breakpoints in the code of runs, with the events and trampoline accesses of a schedule.

    The accesses have entries like those of ``Accesses``; a load stands for the execution of a
    trampoline.

    :param places: the breakpoints, each ``function:offset``.
    :param trampolines: PER_THREAD or SHARED.
    :raises KinstError: a breakpoint cannot be placed.
    """

    def __init__(self, machine: UnicornMachine, runs: Sequence[StartedRun], places: Sequence[str],
                 trampolines: str) -> None:
        self._machine, self._runs = machine, runs
        self._entries: list[bytes] = []
        self._due: dict[int, Site] = {}  # site of the next displaced instruction, keyed by run
        # (physical address, site, code) of each trampoline, keyed by address
        self._holds: dict[int, tuple[int, Site, bytes]] = {}
        # description of each trampoline access, keyed by (position, whether it is a store)
        self.said: dict[tuple[int, bool], str] = {}
        self.events: list[ProbedEvent] = []
        self._breakpoints = RewrittenTrampolines(
            machine, None if trampolines == SHARED else self._owner, self._written, self._reached)
        for text in places:
            place = code_place(machine.image, text)
            function, offset = place.function, place.offset
            matching = [one for one in self._breakpoints.instructions(function)
                     if one.offset == offset]
            if not matching:
                raise ProbeError(f"{text}: no instruction begins at this offset")
            if isinstance(matching[0].verdict, Refuse):
                raise ProbeError(f"{text}: cannot be probed: it {matching[0].verdict.reason}")
            self._breakpoints.add(function, ProbeKind.OFFSET, matching[0])
        self._breakpoints.enable()
        for one in self._breakpoints.sites:
            machine.handle(one.address, functools.partial(self._trapped, one))

    @property
    def area(self) -> range:
        """Address range of the trampolines."""
        return self._breakpoints.area

    def _trapped(self, site: Site) -> None:
        code = self._machine.arch.disassemble(site.code, site.address)
        self._event(f"{self._machine.image.symbols.where(site.address)}: trap at the breakpoint "
                    f"over '{code}'")

    def _event(self, text: str, at: int = 0, holds: str = "") -> None:
        number = self._number()
        # The code that handles a panic is long and belongs to no run.
        if number is not None and len(self.events) < MAX_EVENTS and not self._machine.panics:
            self.events.append(ProbedEvent(self._machine.instructions, number, text, at, holds))

    def _owner(self) -> int:
        return thread_of(self._machine) if self._runs[0].thread else self._machine.cpu.number

    def _number(self) -> int | None:
        """Return the number of the run whose code is being executed, or None."""
        if not self._runs[0].thread:
            return self._machine.cpu.number
        thread = thread_of(self._machine)
        return next((n for n, run in enumerate(self._runs) if run.thread == thread), None)

    def _written(self, at: int, physical: int, site: Site, body: bytes) -> None:
        self._holds[at] = physical, site, body
        number = self._number()
        if number is not None:
            self._due[number] = site
            self._enter(number, at, STORE, f"the trampoline = {self._text(body)}")

    def _reached(self, at: int) -> None:
        _physical, site, body = self._holds[at]
        number = self._number()
        if number is not None:
            due = self._due.get(number, site)
            wrong = "" if due is site else f" (instead of '{self._text(due.code)}')"
            self._enter(number, at, 0, f"executes {self._text(body)}{wrong}")

    def _text(self, code: bytes) -> str:
        """Disassemble the first instruction of a trampoline."""
        arch = self._machine.arch
        return arch.disassemble(code[: arch.instruction_length(code)], 0)

    def _enter(self, number: int, at: int, kind: int, text: str) -> None:
        physical, site, body = self._holds[at]
        position = self._machine.instructions
        self.said[position, bool(kind)] = text
        self._event(text, at, self._text(body) if kind else "")
        self._entries.append(ENTRY.pack(*Access(
            position, site.address, physical, int.from_bytes(body[:8], "little"), SIZE, kind,
            number, position)))

    def begin(self) -> None:
        """Discard the events and accesses of the previous schedule."""
        self._breakpoints.begin()
        self._entries.clear()
        self.said.clear()
        self.events.clear()
        self._due.clear()

    def name(self, physical: int) -> str:
        """Return the name of a location in a trampoline, or "" for any other address."""
        for place_, _site, body in self._holds.values():
            if place_ <= physical < place_ + len(body):
                return f"the trampoline+{physical - place_:#x}"
        return ""

    def take(self) -> bytes:
        """Return the access entries recorded since the last call, and discard them."""
        entries, self._entries = self._entries, []
        return b"".join(entries)
