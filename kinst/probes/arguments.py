"""Locations of a function's arguments at a probe.

At a function's entry, the calling convention determines them, elsewhere the debug data.  An
argument that neither covers has no location, and reading it is an error.
"""

import functools
from dataclasses import dataclass

from dwarf.dwarf_types import DwarfTypes
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Constant, Load, Location, Operation, Pieces, Place, Register, Term
from dwarf.types import Procedure, Structure, Types, strip
from emu.arch.arch import Arch
from emu.elf.symbols import Symbol
from kinst.code.cold_parts import beginnings
from kinst.code.convention import CONVENTIONS, WORD, Convention, Passed, Word, sizes, word, words
from kinst.code.dataflow import EFFECTS
from kinst.code.frame import FrameFollower
from kinst.code.stack_effect import STACK_EFFECTS
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError

MASK = (1 << 64) - 1


@dataclass(frozen=True)
class _Entry:
    """Effects of the instructions that precede a probe at a function's entry.

    :param lowered: bytes by which the stack pointer was lowered; None: unknown.
    :param lost: argument registers that were overwritten.
    """

    lowered: int | None
    lost: frozenset[str]


UNCHANGED = _Entry(0, frozenset())


class Arguments:
    """Locations of the arguments of functions with probes.

    :param types: the kernel's; None: only the words ``argN`` are known.
    """

    def __init__(self, probes: ProbeTable, types: Types | None) -> None:
        self._probes, self._types = probes, types
        self._arch: Arch = probes.arch
        self._convention: Convention = CONVENTIONS[self._arch.name]
        self._entries: dict[tuple[int, int], _Entry | None] = {}
        self._procedures: dict[tuple[str, int], Procedure | None] = {}
        self._passed: dict[int, list[Passed | None]] = {}
        self._codes: dict[int, bytes] = {}

    @functools.cached_property
    def follower(self) -> FrameFollower:
        """Follower of the code that finds frames in prologues and epilogues."""
        return FrameFollower(self._arch, self._probes.trap, self._code,
                             beginnings(self._probes.image).__contains__)

    def procedure(self, function: Symbol) -> Procedure | None:
        """Return the prototype of a function, or None if the prototype is unknown."""
        key = function.name, function.address
        if key not in self._procedures:
            self._procedures[key] = (None if self._types is None
                                     else self._types.function(*key))
        return self._procedures[key]

    def by_number(self, function: Symbol, offset: int, number: int) -> Place | None:
        """Return the location of ``argN`` at an instruction, or None.

        At the function's entry, ``argN`` is the N-th word that the caller passed; elsewhere, the
        function's N-th parameter.
        """
        entry = self._entry(function, offset)
        if entry is None:
            kept = self._kept(function, offset)
            return kept[number] if kept is not None and number < len(kept) else None
        return self._word(word(self._convention, number), entry)

    def by_type(self, function: Symbol, offset: int) -> list[Place | None]:
        """Return the location of each parameter of a function at an instruction; None: unknown."""
        procedure = self.procedure(function)
        if procedure is None:
            return []
        count = len(procedure.parameters)
        entry = self._entry(function, offset)
        types = self._types
        changed = isinstance(types, DwarfTypes | LinkedTypes) and types.changed(
            function.name, function.address)
        if entry is None or changed:
            kept = self._kept(function, offset)
            return [None] * count if kept is None else (kept + [None] * count)[:count]
        passed = self._passed.get(id(procedure))
        if passed is None:
            passed = self._passed[id(procedure)] = words(self._convention, procedure)
        return [None if how is None else self._place(
            how, entry, isinstance(strip(parameter.type), Structure))
            for how, parameter in zip(passed, procedure.parameters, strict=True)]

    def at_entry(self, function: Symbol, offset: int) -> bool:
        """Return whether the arguments are still where the caller put them."""
        return self._entry(function, offset) is not None

    def plain(self, function: Symbol, offset: int, number: int) -> bool:
        """Return whether ``argN`` is still in its argument register."""
        entry = self._entry(function, offset)
        return (entry is not None and number < len(self._convention.registers)
                and self._convention.registers[number] not in entry.lost)

    def _kept(self, function: Symbol, offset: int) -> list[Place | None] | None:
        types = self._types
        if not isinstance(types, DwarfTypes | LinkedTypes):
            return None
        address = function.address + offset
        frame = (self.follower.in_epilogue(function, address)
                 or self.follower.in_prologue(function, address))
        numbers = self._arch.dwarf_registers
        return types.kept(function.name, function.address, address, None if frame is None else (
            numbers.index(frame.base), frame.offset))

    def _code(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes of code without breakpoints, or fewer at the end of a function."""
        function = self._probes.image.symbols.function_at(address)
        if function is None:
            return b""
        if function.address not in self._codes:
            try:
                self._codes[function.address] = self._probes.code(function)
            except ProbeError:
                self._codes[function.address] = b""
        at = address - function.address
        return self._codes[function.address][at : at + size]

    def _entry(self, function: Symbol, offset: int) -> _Entry | None:
        """Return the effects of the code before an entry probe, or None for any other probe."""
        if offset == 0:
            return UNCHANGED
        key = function.address, offset
        if key not in self._entries:
            self._entries[key] = self._find_entry(function, offset)
        return self._entries[key]

    def _find_entry(self, function: Symbol, offset: int) -> _Entry | None:
        try:
            if self._probes.boundaries(function)[0] != offset:
                return None
            code = self._probes.code(function)[:offset]
        except ProbeError:
            return None
        stack_effect, effect = STACK_EFFECTS[self._arch.name], EFFECTS[self._arch.name]
        lowered: int | None = 0
        lost: frozenset[str] = frozenset()
        for instruction in self._arch.split(code):
            change = stack_effect(instruction)
            if lowered is None or change.base or self._arch.sp in change.lost:
                lowered = None
            else:
                lowered -= change.change
            lost |= effect(instruction).writes & frozenset(self._convention.registers)
        return _Entry(lowered, lost)

    def _place(self, passed: Passed, entry: _Entry, structure: bool) -> Place | None:
        places = [self._word(passed_word, entry) for passed_word in passed.words]
        if passed.by_reference:
            pointer = places[0]
            if pointer is None:
                return None
            return Location(Load(pointer.term, WORD) if pointer.memory else pointer.term, True)
        stacked = all(not passed_word.register for passed_word in passed.words)
        if (len(places) == 1 and not structure) or (places and stacked):
            return places[0]
        parts: list[tuple[Term, int]] = []
        for place, size in zip(places, sizes(passed), strict=True):
            if place is None:
                return None
            parts.append((Load(place.term, WORD) if place.memory else place.term, size))
        return Pieces(tuple(parts))

    def _word(self, one: Word, entry: _Entry) -> Location | None:
        registers = self._arch.dwarf_registers
        if one.register:
            return (None if one.register in entry.lost
                    else Location(Register(registers.index(one.register)), False))
        if entry.lowered is None:
            return None
        sp = Register(registers.index(self._arch.sp))
        offset = self._convention.stacked_at + entry.lowered + one.offset
        return Location(Operation("+", sp, Constant(offset & MASK)) if offset else sp, True)
