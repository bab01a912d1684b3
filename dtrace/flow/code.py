"""What the pieces of a flow are made of: instructions, functions, inline copies; each looked at
once."""

from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dwarf.debug_file import debug_file
from dwarf.index import DebugIndex, Function
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.host.errors import KinstError
from kinst.code.transfer import Ending, Transfer, ending
from kinst.relocation.trap import TRAPS

LONGEST = 15  # bytes of an instruction
UNKNOWN = Ending(Transfer.NONE, None, 0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Code of one function and the same inline copies.

    :param offset: in instructions, from the piece's start.
    :param function: its name; ``enters``: whether the stretch begins with its first instruction.
    :param start: the function's first address.
    :param inline: the inline copies, outer ones first.
    """

    offset: int
    function: str
    start: int
    enters: bool
    inline: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class StraightCode:
    """A piece of straight code.

    :param last: the address of its last instruction; ``ending`` is how it ends.
    :param marked: (offset in instructions, index of a mark) of the marked instructions in it.
    """

    count: int
    stretches: tuple[Stretch, ...]
    last: int
    ending: Ending
    marked: tuple[tuple[int, int], ...]


class KernelCode:
    """Reads a kernel's code as its image has it.

    :param marks: addresses to be found again, by the number of the mark they belong to.
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
        """The instruction at an address; empty where the image has none."""
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
        """Of the instructions of a piece; as far as the image has them."""
        found = []
        for _ in range(count):
            found.append(address)
            length = len(self.instruction(address))
            if not length:
                break
            address += length
        return found

    def place(self, address: int) -> tuple[str, int, tuple[Function, ...]]:
        """(function, its first address, inline copies from the outer one on) of an instruction."""
        found = self._places.get(address)
        if found is None:
            symbols = self.image.symbols
            symbol = symbols.function_at(address) or symbols.label_at(address)
            inline = () if self._index is None else tuple(
                f for f in reversed(self._index.stack(address)) if f.inlined)
            name, start = (f"{address:#x}", address) if symbol is None else (
                symbol.name, symbol.address)
            found = self._places[address] = name, start, inline
        return found

    def piece(self, address: int, count: int) -> StraightCode:
        found = self._known.get((address, count))
        if found is None:
            found = self._known[address, count] = self._piece(address, count)
        return found

    def _piece(self, address: int, count: int) -> StraightCode:
        addresses = self.addresses(address, count)
        stretches: list[Stretch] = []
        before: tuple[int, tuple[Function, ...]] | None = None
        marked = []
        for offset, at in enumerate(addresses):
            name, start, inline = self.place(at)
            if before != (start, inline) or at == start:
                stretches.append(Stretch(offset, name, start, at == start, inline))
                before = start, inline
            marked += [(offset, number) for number in self._marks.get(at, ())]
        code = self.instruction(addresses[-1])
        whole = len(addresses) == count and code
        return StraightCode(count, tuple(stretches), addresses[-1],
                    ending(self._trap, code, addresses[-1]) if whole else UNKNOWN, tuple(marked))
