"""What the rest of the project must know of an architecture; one object in each folder.

Here is what the architecture's manual says; what a kernel makes of it is in ``emu.guest.guest``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import capstone
    import keystone


ALL = (1 << 64) - 1


class Context(Protocol):
    """What the rules of an architecture need: a CPU's registers, and memory."""

    @property
    def sp(self) -> int: ...

    def read_register(self, name: str) -> int: ...

    def write_register(self, name: str, value: int) -> None: ...

    def read_physical(self, address: int, size: int) -> bytes: ...

    def write_u64(self, address: int, value: int) -> None: ...


class StackContext(Context, Protocol):
    """A CPU whose stack can be read, too."""

    def read_u64(self, address: int) -> int: ...


class Arch(ABC):
    """An architecture: registers, calling convention, paging, instructions."""

    name: ClassVar[str]
    elf_machine: ClassVar[str]  # e_machine as pyelftools names it, without EM_
    registers: ClassVar[Mapping[str, int]]  # general registers, name -> bits
    pc: ClassVar[str]
    sp: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    result: ClassVar[str]
    macros: ClassVar[tuple[str, ...]]  # that a C compiler for it defines
    link: ClassVar[str | None]  # where a call leaves its return address; None: on the stack
    dwarf_registers: ClassVar[tuple[str, ...]]  # general registers by their DWARF number
    # A function's frame: the register that points to it; from there, where the caller's value of
    # that register is saved, and where the return address.
    frame_record: ClassVar[tuple[str, int, int]]
    # Whether kernels load modules that are relocatable files (ld -r), beside shared objects.
    relocatable_modules: ClassVar[bool]
    # Whether a watchpoint stops before the access, and the debugger steps over it; else behind it.
    watches_before: ClassVar[bool]

    @abstractmethod
    def walk(self, cpu: Context, address: int) -> tuple[int, int] | None:
        """Walk the page tables of the machine's present address space: a physical address, and the
        entry that maps it (without translation, all ones); None: nothing does."""

    def translate(self, cpu: Context, address: int) -> int | None:
        """The physical address; None: it is not mapped."""
        found = self.walk(cpu, address)
        return None if found is None else found[0]

    @abstractmethod
    def writable(self, entry: int) -> bool:
        """Whether an entry lets its page be written to."""

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

    def prepare_call(self, cpu: Context, arguments: tuple[int, ...], back: int) -> None:
        """Set registers and stack as a call instruction to the pc in force would, returning to
        ``back``, with integer arguments in their places; those that do not fit registers go on
        the stack, eight bytes each."""
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
        """The stack pointer when the function that was just entered has returned."""
        return cpu.sp + self.return_size

    def return_address(self, cpu: StackContext) -> int:
        """Where the function that was just entered returns to."""
        return cpu.read_u64(cpu.sp) if self.link is None else cpu.read_register(self.link)

    @property
    def return_size(self) -> int:
        """Bytes that a return takes from the stack."""
        return 8 if self.link is None else 0

    def executed_length(self, code: bytes) -> int:
        """The same, of what the CPU models execute: more than there are instructions."""
        return self.instruction_length(code)

    def is_atomic(self, code: bytes, before: bytes = b"", behind: bytes = b"") -> bool:
        """Whether an instruction's accesses to memory are atomic, or order others (exclusive,
        locked, acquire and release).

        :param before: the four bytes before it, ``behind`` those behind it.
        """
        raise NotImplementedError

    def split(self, code: bytes) -> list[bytes]:
        """The instructions of a piece of code; the last one may end behind it."""
        found, at = [], 0
        while at < len(code):
            length = self.executed_length(code[at : at + 15]) or 1
            found.append(code[at : at + length])
            at += length
        return found
