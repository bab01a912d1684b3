"""Interface to a CPU architecture, implemented by one object in each architecture's package.

It describes what the architecture's manual defines; what depends on the kernel is in
``emu.guest.guest``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import capstone
    import keystone


ALL = (1 << 64) - 1


class Context(Protocol):
    """The part of a machine that ``Arch`` objects use: the registers of a CPU, and memory."""

    @property
    def sp(self) -> int: ...

    def read_register(self, name: str) -> int: ...

    def write_register(self, name: str, value: int) -> None: ...

    def read_physical(self, address: int, size: int) -> bytes: ...

    def write_u64(self, address: int, value: int) -> None: ...


class StackContext(Context, Protocol):
    """A ``Context`` whose stack can be read."""

    def read_u64(self, address: int) -> int: ...


class Arch(ABC):
    """An architecture: registers, calling convention, paging and instructions."""

    name: ClassVar[str]
    elf_machine: ClassVar[str]  # name of e_machine in pyelftools, without the prefix EM_
    registers: ClassVar[Mapping[str, int]]  # general registers: name -> size in bits
    pc: ClassVar[str]
    sp: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    result: ClassVar[str]
    macros: ClassVar[tuple[str, ...]]  # macros that C compilers for the architecture predefine
    link: ClassVar[str | None]  # register that receives a call's return address, if any
    dwarf_registers: ClassVar[tuple[str, ...]]  # general registers, indexed by DWARF number
    # Register whose DWARF number compilers also use for the register that is always zero, if any.
    zero_alias: ClassVar[str | None] = None
    # Beginnings of the disassembled instruction that saves the caller's frame or return address
    saves_frame: ClassVar[tuple[str, ...]]
    # Frame record of a function: the register that points to the record, the offset of the caller's
    # value of this register, and the offset of the return address.
    frame_record: ClassVar[tuple[str, int, int]]
    # Whether kernels load relocatable files (ld -r) as modules, in addition to shared objects.
    relocatable_modules: ClassVar[bool]
    # Whether a watchpoint stops before the access, so that the debugger steps over the access.
    watches_before: ClassVar[bool]
    # Address at which Keystone assembles text; kinst/verify/laboratory tests instructions there.
    assembly_address: ClassVar[int] = 0x4000_0000

    @abstractmethod
    def walk(self, cpu: Context, address: int) -> tuple[int, int] | None:
        """Walk the page tables of the current address space.

        :return: the physical address, and the page table entry that maps it (without translation,
            all ones); None: the address is not mapped.
        """

    def translate(self, cpu: Context, address: int) -> int | None:
        """Return the physical address of a virtual address, or None for an unmapped address."""
        walked = self.walk(cpu, address)
        return None if walked is None else walked[0]

    @abstractmethod
    def writable(self, entry: int) -> bool:
        """Return whether a page table entry allows writes to its page."""

    @abstractmethod
    def decoder(self) -> "capstone.Cs":
        """Return Capstone's decoder for the architecture, with instruction details turned off."""

    def assembler(self, text: str) -> "keystone.Ks | None":
        """Return Keystone's assembler for the syntax of ``text``, or None if unavailable."""
        return None

    def disassemble(self, code: bytes, address: int) -> str:
        """Return the first instruction in ``code`` as text, or as ``.byte`` if it is undefined."""
        for _at, _size, name, operands in self.decoder().disasm_lite(code, address, 1):
            return f"{name} {operands}".strip()
        return ".byte " + ", ".join(f"{byte:#04x}" for byte in code)

    @abstractmethod
    def instruction_length(self, code: bytes) -> int:
        """Return the size in bytes of the first instruction in ``code``, or 0 if it is invalid.

        :param code: at most 15 bytes.
        """

    def placed_operands(self, code: bytes, pc: int) -> "list[tuple[str, int]]":
        """Return the first instruction's memory operands that do not use a general register.

        :return: (base, offset) of each operand; the base is empty or a special register, such as
            that of a segment.
        """
        return []

    def prepare_call(self, cpu: Context, arguments: tuple[int, ...], back: int) -> None:
        """Set up registers and stack as if the function at the current pc had just been called.

        :param arguments: integer arguments; those that do not fit into registers go on the stack,
            eight bytes each.
        :param back: return address.
        """
        sp = cpu.sp & ~15
        stacked = arguments[len(self.arguments) :]
        sp -= (8 * len(stacked) + 15) & ~15
        for i, value in enumerate(stacked):
            cpu.write_u64(sp + 8 * i, value)
        if self.link is None:
            sp -= 8
            cpu.write_u64(sp, back)
        else:
            cpu.write_register(self.link, back)
        cpu.write_register(self.sp, sp)
        for name, value in zip(self.arguments, arguments, strict=False):
            cpu.write_register(name, value)

    def stack_after_return(self, cpu: Context) -> int:
        """Return the value that the stack pointer will have after the current function returns."""
        return cpu.sp + self.return_size

    def return_address(self, cpu: StackContext) -> int:
        """Return the return address of the function that was just entered."""
        return cpu.read_u64(cpu.sp) if self.link is None else cpu.read_register(self.link)

    @property
    def return_size(self) -> int:
        """Number of bytes that a return instruction pops from the stack."""
        return 8 if self.link is None else 0

    def executed_length(self, code: bytes) -> int:
        """Return how many bytes of ``code`` the CPU models decode as the first instruction.

        The CPU models also execute encodings that are not valid instructions.

        :return: 0 if they do not execute the instruction.
        """
        return self.instruction_length(code)

    def is_atomic(self, code: bytes, before: bytes = b"", behind: bytes = b"") -> bool:
        """Return whether an instruction accesses memory atomically, or orders other accesses.

        This includes exclusive, locked, acquire and release accesses.

        :param before: the four bytes before the instruction.
        :param behind: the four bytes after the instruction.
        """
        raise NotImplementedError

    def split(self, code: bytes) -> list[bytes]:
        """Split code into instructions; the last one may be incomplete."""
        instructions, at = [], 0
        while at < len(code):
            length = self.executed_length(code[at : at + 15]) or 1
            instructions.append(code[at : at + length])
            at += length
        return instructions
