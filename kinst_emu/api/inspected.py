"""Registers, memory, clock and types of a machine that stands still, or in a probe's function."""

from functools import cached_property

from dtrace.stacks.stack import DEFAULT_FRAMES, Stacks
from dwarf.debug_file import DebugDataError
from dwarf.types import Pointer, Procedure, Type, Types
from dwarf.values import CStruct, Value, load, store, text_at
from emu.host.errors import KinstError, MachineError
from emu.machine.machine import Machine
from kinst_emu.api.kernel_file import KernelFile
from kinst_emu.api.registers import MachineRegisters
from kinst_emu.api.turn import Turn, in_turn

MAX_STRING = 4096


class Inspected:
    """A computer that runs a kernel: registers, memory, clock, types.

    It is a ``Memory``: what ``value`` and ``struct`` give is read when it is looked at.  One thread
    uses it at a time, of the process that has made it (``turn``).

    :param emulated: the machine below, ours or QEMU's.
    """

    def __init__(self, kernel: KernelFile, emulated: Machine) -> None:
        self.kernel, self.emulated = kernel, emulated
        self.turn = Turn()

    def __repr__(self) -> str:
        try:
            return f"<machine with {self.kernel.path} at {self.where(self.pc)}>"
        except MachineError:  # another thread uses it
            return f"<machine with {self.kernel.path}>"

    # -- registers, memory, clock -----------------------------------------------------------------

    @property
    def registers(self) -> MachineRegisters:
        """``machine.registers["rax"]``; may be written."""
        return MachineRegisters(self.emulated, self.turn)

    @property
    @in_turn
    def pc(self) -> int:
        """The address of the next instruction; may be written."""
        return self.emulated.pc

    @pc.setter
    @in_turn
    def pc(self, value: int) -> None:
        self._still()
        self.emulated.pc = value

    @property
    @in_turn
    def sp(self) -> int:
        return self.emulated.sp

    @property
    @in_turn
    def instructions(self) -> int:
        """Executed by the guest since the start of the boot.

        :raises MachineError: on QEMU, which does not count them.
        """
        return self.emulated.instructions

    @property
    @in_turn
    def now(self) -> int:
        """Virtual nanoseconds since the start of the boot."""
        return self.emulated.now

    @property
    @in_turn
    def console(self) -> str:
        """What the guest has written to its console; of a booted machine, also in its boot."""
        return self.emulated.console.text.replace(b"\r", b"").decode("utf-8", "backslashreplace")

    @in_turn
    def read(self, address: int, size: int) -> bytes:
        """Virtual memory, by the guest's page tables.

        :raises MemoryAccessError: when a page is not mapped.
        """
        return self.emulated.read(address, size)

    @in_turn
    def write(self, address: int, data: bytes) -> None:
        """Write virtual memory, protected or not.

        :raises MemoryAccessError: when a page is not mapped; nothing is written then.
        """
        self._still()
        self.emulated.write(address, data)

    def _still(self) -> None:
        if self.emulated.running:
            raise KinstError("the machine is running: a probe's function only looks at it")

    @in_turn
    def string(self, address: int, limit: int = MAX_STRING) -> str:
        """A string that ends at a NUL, or at the limit."""
        return text_at(self, int(address), limit)

    def where(self, address: int) -> str:
        """An address as ``function+offset``; hexadecimal, where there is no function."""
        return self.emulated.image.symbols.where(address)

    @in_turn
    def stack(self, frames: int = DEFAULT_FRAMES) -> list[str]:
        """The stack, a line for each frame, with inline functions and source lines."""
        return [line.strip() for line in
                self.stacks.text(self.emulated.read_register, frames)]

    @cached_property
    def stacks(self) -> Stacks:
        return Stacks(self.emulated)

    # -- typed memory -----------------------------------------------------------------------------

    @in_turn
    def value(self, kind: str, address: int) -> Value:
        """What is at an address, as a C type: ``uint32_t``, ``struct thread``, ``char *``.

        :raises KinstError: when the debug data has no such type, or several.
        """
        return load(self, self._type(kind), int(address))

    @in_turn
    def set(self, kind: str, address: int, value: object) -> None:
        """Write a value of a C type.

        :raises TypeError: for a value that is not of the type.
        :raises OverflowError: for one that does not fit.
        """
        store(self, self._type(kind), int(address), value)

    @in_turn
    def struct(self, tag: str, address: int) -> CStruct:
        """A structure: ``machine.struct("thread", address).td_name``."""
        found = self.value(f"struct {tag}", address)
        if not isinstance(found, CStruct):
            raise KinstError(f"struct {tag} is declared but not defined")
        return found

    @in_turn
    def variable(self, name: str) -> Value:
        """A variable of the kernel, by its name and type.

        :raises KinstError: when there is none, or its type is not known.
        """
        address = self.kernel.symbol(name)
        kind = self._types().variable(name, address)
        if kind is None:
            raise KinstError(f"{self.kernel.path}: the type of '{name}' is not known")
        return load(self, kind, address)

    def prototype(self, function: str, address: int | None = None) -> Procedure:
        """:raises KinstError: when what a function takes and gives is not known."""
        found = self.kernel.prototypes.of(function, address)
        if found is None:
            raise KinstError(f"{self.kernel.path}: the arguments of '{function}' are not known")
        return found

    def _types(self) -> Types:
        types = self.kernel.prototypes.types()
        if types is None:
            raise DebugDataError(f"{self.kernel.path}: has no types: no debug data in it, and no "
                                 f"{self.kernel.path.name}.debug beside it")
        return types

    def _type(self, name: str) -> Type:
        """A type by name; pointers to it with ``*`` behind."""
        plain = name.rstrip("* ")
        found = self._types().named(plain)
        if len(found) != 1:
            why = f"has {len(found)} types" if found else "has no type"
            raise KinstError(f"{self.kernel.path}: {why} named '{plain}' (see: kinst type)")
        kind = found[0]
        for _ in range(name.count("*")):
            kind = Pointer(lambda kind=kind: kind)  # type: ignore[misc]
        return kind
