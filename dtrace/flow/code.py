"""Decoded code of a control flow: functions, inline copies and control transfers."""

from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dtrace.flow.user_code import in_program
from dwarf.debug_file import debug_file
from dwarf.index import DebugIndex, Function
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.host.errors import KinstError
from kinst.code.transfer import Ending, Transfer, ending
from kinst.relocation.trap import TRAPS

PROGRAM = "(user or physical addresses)"  # name of the code of programs and of the earliest boot
LONGEST = 15  # maximum length of an instruction in bytes
UNKNOWN = Ending(Transfer.NONE, None, 0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive instructions that belong to the same function and the same inline copies.

    :param offset: number of instructions in the piece before it.
    :param function: the function's name.
    :param start: the function's first address.
    :param enters: whether it begins with the function's first instruction.
    :param inline: the inline copies, outermost first.
    """

    offset: int
    function: str
    start: int
    enters: bool
    inline: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class StraightCode:
    """A piece of straight-line code.

    :param count: number of instructions.
    :param last: the address of the last instruction.
    :param ending: how the last instruction transfers control.
    :param marked: (offset in instructions, number of a mark) of its marked instructions.
    """

    count: int
    stretches: tuple[Stretch, ...]
    last: int
    ending: Ending
    marked: tuple[tuple[int, int], ...]


class KernelCode:
    """Code of a kernel, read from the kernel's image.

    :param marks: the addresses of each mark, by the mark's number.
    """

    def __init__(self, image: Image, marks: list[list[int]] | None = None) -> None:
        self.image, self.arch = image, arch_of(image)
        self._trap = TRAPS[self.arch.name]
        self._index: DebugIndex | None = (
            debug_index(image) if debug_file(image.file) is not None else None)
        self._marks: dict[int, list[int]] = {}
        for number, addresses in enumerate(marks or []):
            for address in addresses:
                self._marks.setdefault(address, []).append(number)
        self._known: dict[tuple[int, int], StraightCode] = {}
        self._instructions: dict[int, bytes] = {}
        self._places: dict[int, tuple[str, int, tuple[Function, ...]]] = {}

    def instruction(self, address: int) -> bytes:
        """Return an instruction's bytes, or empty bytes if its address is not in the image."""
        found = self._instructions.get(address)
        if found is None:
            found = self._instructions[address] = self._read(address)
        return found

    def _read(self, address: int) -> bytes:
        for size in range(LONGEST, 0, -1):
            try:
                code = self.image.virtual_to_file(address, size)
            except KinstError:
                continue
            length = self.arch.instruction_length(code)
            return code[:length] if 0 < length <= size else b""
        return b""

    def addresses(self, address: int, count: int) -> list[int]:
        """Return the addresses of a piece's instructions, up to the first one outside the image."""
        addresses = []
        for _ in range(count):
            addresses.append(address)
            length = len(self.instruction(address))
            if not length:
                break
            address += length
        return addresses

    def place(self, address: int) -> tuple[str, int, tuple[Function, ...]]:
        """Return the name and start of the function, and the inline copies, at an address.

        The inline copies are sorted from the outermost to the innermost. Everything
        else in the lower half of the addresses is one function that starts at 0.
        """
        place = self._places.get(address)
        if place is None and in_program(address) and not self.image.holds_code(address):
            place = self._places[address] = PROGRAM, 0, ()
        if place is None:
            symbols = self.image.symbols
            symbol = symbols.function_at(address) or symbols.label_at(address)
            inline = () if self._index is None else tuple(
                f for f in reversed(self._index.stack(address)) if f.inlined)
            start = symbols.gap_at(address) if symbol is None else symbol.address
            name = f"{start:#x}" if symbol is None else symbol.name
            place = self._places[address] = name, start, inline
        return place

    def piece(self, address: int, count: int) -> StraightCode:
        """Return a decoded piece of code, from the cache if possible."""
        code = self._known.get((address, count))
        if code is None:
            code = self._known[address, count] = self._piece(address, count)
        return code

    def _piece(self, address: int, count: int) -> StraightCode:
        addresses = self.addresses(address, count)
        stretches: list[Stretch] = []
        before: tuple[int, tuple[Function, ...]] | None = None
        marked = []
        for offset, instruction in enumerate(addresses):
            name, start, inline = self.place(instruction)
            if before != (start, inline) or instruction == start:
                stretches.append(Stretch(offset, name, start, instruction == start, inline))
                before = start, inline
            marked += [(offset, number) for number in self._marks.get(instruction, ())]
        code = self.instruction(addresses[-1])
        complete = len(addresses) == count and code
        return StraightCode(count, tuple(stretches), addresses[-1],
                    ending(self._trap, code, addresses[-1]) if complete else UNKNOWN, tuple(marked))
