"""Division of a firing of the kernel's own tracer into the parts of its work."""

from collections.abc import Callable, Collection, Sequence

from dtrace.debug.debug_index import debug_index
from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.guest.tracer import TracerCode, TracerPart
from kinst_emu.explain.record.seen_tracing import BREAKPOINT, CALL, PROGRAM, SeenTracing

BETWEEN = "(jump between modules)"  # instead of a function's name


def divide(seen: SeenTracing, image: Image, tracer: TracerCode, breakpoints: Collection[bytes]
           ) -> None:
    """Set the parts and functions of a recorded firing's rows, and the values of its predicates.

    :param breakpoints: codes of breakpoints.
    """
    _Division(seen, image, tracer).divide()
    set_apart(seen, breakpoints)


def set_apart(seen: SeenTracing, breakpoints: Collection[bytes]) -> None:
    """Count the rows of exceptions in the trampoline, such as page faults, as the probed code's."""
    apart = False
    for number in range(1, len(seen.rows) - 1):
        if seen.parts[number] is TracerPart.TRAMPOLINE:
            apart = False
        elif apart or (seen.parts[number - 1] is TracerPart.TRAMPOLINE
                       and seen.rows[number - 1].code not in breakpoints):
            apart, seen.parts[number] = True, TracerPart.CODE


class _Division:
    """Divider of one firing: a row belongs to the part of the innermost function that has one."""

    def __init__(self, seen: SeenTracing, image: Image, tracer: TracerCode) -> None:
        self._seen, self._image, self._tracer = seen, image, tracer
        self._function = image.symbols.function_at
        try:
            self._index: DebugIndex | None = debug_index(image)
        except DebugDataError:
            self._index = None
        self._known: dict[int, tuple[str, ...]] = {}  # inlined functions by address

    def divide(self) -> None:
        """Set the parts, the functions and the values of the predicates."""
        seen = self._seen
        calls, predicate = Calls(self._function), 0
        predicates = {ecb.predicate for ecb in seen.ecbs if ecb.predicate}
        arch = arch_of(self._image)
        for number, row in enumerate(seen.rows):
            depth = calls.enter(row.address)
            function = calls.functions[-1]
            if predicate and depth < predicate:  # the predicate has been evaluated
                seen.predicates.append((number, bool(row.registers[arch.result])))
                predicate = 0
            if (function is not None and function.name == self._tracer.evaluates
                    and row.address == function.address
                    and row.registers[arch.arguments[0]] in predicates):
                predicate = depth
            names = self._names(calls.functions, row.address)
            inner = next((name for name in names if name in self._tracer.parts), "")
            seen.functions.append(self._shown(row.address, inner))
            part = self._part(inner, number)
            if self._tracer.reports in names and number > seen.fired:
                part = TracerPart.ERROR
            elif predicate:
                part = TracerPart.PREDICATE
            seen.parts.append(part)

    def _shown(self, address: int, inner: str) -> str:
        """Return the name of the function that a row belongs to.

        :param inner: the innermost function that belongs to a part.
        """
        if inner in self._inlined(address) and self._tracer.parts[inner] in (
                TracerPart.ACTION, TracerPart.COPY):
            return inner
        inside = self._function(address)
        if inside is not None:
            return inside.name
        return "" if self._image.module_at(address) is None else BETWEEN

    def _part(self, function: str, number: int) -> TracerPart:
        """Return the part of a row.

        :param function: the innermost function that belongs to a part; empty if there is none.
        """
        seen = self._seen
        if number in (0, len(seen.rows) - 1):
            return TracerPart.CODE
        if seen.how == BREAKPOINT and not self._image.holds_code(seen.rows[number].address):
            return TracerPart.TRAMPOLINE
        if seen.how == PROGRAM and not seen.rows[number].address >> 63:
            return TracerPart.TRAMPOLINE
        if function:
            return self._tracer.parts[function]
        return TracerPart.CODE if seen.how == CALL else TracerPart.TRAP

    def _inlined(self, address: int) -> tuple[str, ...]:
        """Return the names of the functions inlined at an address, innermost first."""
        if address not in self._known:
            self._known[address] = () if self._index is None else tuple(
                one.name for one in self._index.stack(address) if one.inlined)
        return self._known[address]

    def _names(self, functions: Sequence[Symbol | None], address: int) -> list[str]:
        """Return the names of the functions being executed, innermost first."""
        return [*self._inlined(address),
                *(one.name for one in reversed(functions) if one is not None)]


class Calls:
    """Stack of the functions that are being executed, found from the executed addresses.

    :param function: returns the function at an address.
    """

    def __init__(self, function: Callable[[int], Symbol | None]) -> None:
        self._function = function
        self.functions: list[Symbol | None] = []

    def enter(self, address: int) -> int:
        """Follow the execution to an address, and return the new depth less 1.

        Code outside functions, such as that of vectors and of jumps between modules, belongs to the
        function before it.
        """
        function = self._function(address)
        stack = self.functions
        if not stack or (function is not None and stack[-1] != function):
            if function is not None and function in stack and address != function.address:
                while stack[-1] != function:
                    stack.pop()
            else:
                stack.append(function)
        return len(stack) - 1
