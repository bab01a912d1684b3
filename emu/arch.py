"""What the rest of the project must know of an architecture; one subclass in each folder."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import capstone
    import keystone

    from emu.elf import Image
    from emu.machine import Machine
    from emu.unicorn.board import Board
    from emu.unicorn.machine import UnicornMachine


class TrapFrame:
    """Layout of the kernel's ``struct trapframe``: field -> (byte offset, bytes)."""

    def __init__(self, size: int, fields: Mapping[str, tuple[int, int]]) -> None:
        self.size = size
        self.fields = fields

    def read(self, machine: "Machine", frame: int, name: str) -> int:
        offset, size = self.fields[name]
        return int.from_bytes(machine.read(frame + offset, size), "little")

    def write(self, machine: "Machine", frame: int, name: str, value: int) -> None:
        offset, size = self.fields[name]
        machine.write(frame + offset, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))


LARGE = 2 << 20  # bytes of a large page, in all three architectures


@dataclass(frozen=True)
class Hole:
    """Unused address space of whole large pages: what to write to make it executable memory.

    :param writes: page table entries to set: (physical address, content).
    """

    virtual: int
    writes: tuple[tuple[int, int], ...]


def find_hole(
    machine: "Machine", directory: int, pages: int, next_table: Callable[[int], int | None]
) -> int | None:
    """The last run of unused entries of a directory of 512: the index of its first.

    Unused is an entry that is not present, or that points to a table of nothing.

    :param next_table: for an entry, 0 when it is not present, the physical address of the table
        it points to, or None when it is a large page.
    """
    raw = machine.read_physical(directory, 4096)
    run = 0
    for index in range(511, -1, -1):
        table = next_table(int.from_bytes(raw[8 * index : 8 * index + 8], "little"))
        unused = table == 0 or (table is not None and not any(machine.read_physical(table, 4096)))
        run = run + 1 if unused else 0
        if run == pages:
            return index
    return None


def find_far_hole(
    machine: "Machine", directories: int, near: int, pages: int,
    next_table: Callable[[int], int | None],
) -> tuple[int, int, int] | None:
    """A hole in the last GiB of the kernel's half that has page tables, or in an earlier one: what
    lies around the kernel is given out by its allocator.

    :param directories: physical address of the table of GiBs that the address ``near`` is in.
    :return: the hole's virtual address, its directory, and the index of its first entry there.
    """
    raw = machine.read_physical(directories, 4096)
    for gib in range(511, (near >> 30 & 511) - 1, -1):
        table = next_table(int.from_bytes(raw[8 * gib : 8 * gib + 8], "little"))
        first = find_hole(machine, table, pages, next_table) if table else None
        if table and first is not None:
            return (near & -1 << 39) + (gib << 30) + (first << 21), table, first
    return None


def large_pages(directory: int, first: int, physical: int, attributes: int,
                pages: int) -> tuple[tuple[int, int], ...]:
    """Entries of a directory, from the index ``first`` on, that map memory at ``physical``."""
    return tuple(
        (directory + 8 * (first + i), physical + i * LARGE | attributes) for i in range(pages)
    )


NO_HOLE = "the kernel's address space has no hole for trampolines"


class Arch(ABC):
    """An architecture: registers, calling convention, paging, trap frame."""

    name: ClassVar[str]
    elf_machine: ClassVar[str]  # e_machine as pyelftools names it, without EM_
    registers: ClassVar[Mapping[str, int]]  # general registers, name -> bits
    pc: ClassVar[str]
    sp: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    result: ClassVar[str]
    macros: ClassVar[tuple[str, ...]]  # that a C compiler for it defines
    per_cpu: ClassVar[str]  # leads to the kernel's ``struct pcpu``; the thread is its first word
    link: ClassVar[str | None]  # where a call leaves its return address; None: on the stack
    trap_frame: ClassVar[TrapFrame]
    dwarf_registers: ClassVar[tuple[str, ...]]  # general registers by their DWARF number
    # A function's frame: the register that points to it; from there, where the caller's value of
    # that register is saved, and where the return address.
    frame_record: ClassVar[tuple[str, int, int]]
    # Where the vectors call the kernel's C code, with the trap frame at the stack pointer.
    trap_entries: ClassVar[frozenset[str]]

    @abstractmethod
    def translate(self, machine: "Machine", address: int) -> int | None:
        """Walk the page tables of the machine's present address space."""

    @abstractmethod
    def executable_hole(
        self, machine: "Machine", near: int, physical: int, pages: int, directory: int
    ) -> "Hole | None":
        """A place for memory near the code at ``near``, in tables that all address spaces of the
        kernel share.

        :param physical: where the memory is, on a large page's boundary.
        :param pages: large pages of it.
        :param directory: an empty page for a table, should one be needed.
        :return: None when the MMU is off: physical addresses are executable then.
        :raises MachineError: when the address space has no hole.
        """

    @abstractmethod
    def decoder(self) -> "capstone.Cs":
        """Capstone's decoder, without details."""

    def assembler(self, text: str) -> "keystone.Ks | None":
        """Keystone's assembler, in the syntax that ``text`` is in; None: it knows none of this
        architecture."""
        return None

    def disassemble(self, code: bytes, address: int) -> str:
        """The first instruction of ``code`` as text; its bytes when the decoder knows none."""
        for _at, _size, name, operands in self.decoder().disasm_lite(code, address, 1):
            return f"{name} {operands}".strip()
        return ".byte " + ", ".join(f"{byte:#04x}" for byte in code)

    @abstractmethod
    def instruction_length(self, code: bytes) -> int:
        """Bytes of the first instruction of ``code`` (at most 15 given); 0 when not valid."""

    def placed_operands(self, code: bytes, pc: int) -> "list[tuple[str, int]]":
        """Memory operands of the first instruction of ``code`` that lie at a fixed place: (a base
        register that is no general one, or nothing; offset)."""
        return []

    def prepare_call(self, machine: "Machine", arguments: tuple[int, ...], back: int) -> None:
        """Set registers and stack as a call instruction to the pc in force would, returning to
        ``back``, with integer arguments in their places; those that do not fit registers go on
        the stack, eight bytes each."""
        sp = machine.sp & ~15
        stacked = arguments[len(self.arguments) :]
        sp -= (8 * len(stacked) + 15) & ~15
        for i, value in enumerate(stacked):
            machine.write_u64(sp + 8 * i, value)
        if self.link is None:
            sp -= 8
            machine.write_u64(sp, back)
        else:
            machine.write_register(self.link, back)
        machine.write_register(self.sp, sp)
        for name, value in zip(self.arguments, arguments, strict=False):
            machine.write_register(name, value)

    def entry_address(self, image: "Image") -> int:
        """An address in the kernel's first instructions, which the boot alone executes.  Not of the
        very first: Unicorn also looks at the byte before a stop address."""
        return image.entry + 16

    def stack_after_return(self, machine: "Machine") -> int:
        """The stack pointer when the function that was just entered has returned."""
        return machine.sp + (8 if self.link is None else 0)

    @abstractmethod
    def board(self, machine: "UnicornMachine") -> "Board":
        """The computer around the CPU, for Unicorn."""

    def split(self, code: bytes) -> list[bytes]:
        """The instructions of a piece of code; the last one may end behind it."""
        found, at = [], 0
        while at < len(code):
            length = self.instruction_length(code[at : at + 15]) or 1
            found.append(code[at : at + length])
            at += length
        return found
