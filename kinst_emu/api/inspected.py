"""Access to the registers, memory, clock and types of a stopped machine."""

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
    """Registers, memory, clock and types of a machine that runs a kernel.

    The machine is a ``Memory``: objects that ``value`` and ``struct`` return read guest memory on
    access.  Only the process that created the machine can use it, one thread at a time (``turn``).

    :param emulated: the underlying machine, Unicorn's or QEMU's.
    """

    def __init__(self, kernel: KernelFile, emulated: Machine) -> None:
        self.kernel, self.emulated = kernel, emulated
        self.turn = Turn()

    def __repr__(self) -> str:
        try:
            return f"<machine with {self.kernel.path} at {self.where(self.pc)}>"
        except MachineError:  # Another thread is using the machine.
            return f"<machine with {self.kernel.path}>"

    # -- registers, memory, clock -----------------------------------------------------------------

    @property
    def registers(self) -> MachineRegisters:
        """General registers, readable and writable by name: ``machine.registers["rax"]``."""
        return MachineRegisters(self.emulated, self.turn)

    @property
    @in_turn
    def pc(self) -> int:
        """Address of the next instruction; writable."""
        return self.emulated.pc

    @pc.setter
    @in_turn
    def pc(self, value: int) -> None:
        self._still()
        self.emulated.pc = value

    @property
    @in_turn
    def sp(self) -> int:
        """Stack pointer."""
        return self.emulated.sp

    @property
    @in_turn
    def instructions(self) -> int:
        """Number of instructions that the guest has executed since the start of the boot.

        :raises MachineError: on QEMU, which does not count them.
        """
        return self.emulated.instructions

    @property
    @in_turn
    def now(self) -> int:
        """Virtual time in nanoseconds since the start of the boot.

        :raises MachineError: on QEMU, which has no virtual time.
        """
        return self.emulated.now

    @property
    @in_turn
    def console(self) -> str:
        """Text that the guest has written to its console, including its boot messages."""
        return self.emulated.console.text.replace(b"\r", b"").decode("utf-8", "backslashreplace")

    @in_turn
    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory through the guest's page tables.

        :raises MemoryAccessError: when a page is not mapped.
        """
        return self.emulated.read(address, size)

    @in_turn
    def write(self, address: int, data: bytes) -> None:
        """Write virtual memory, including pages that the guest has write-protected.

        :raises MemoryAccessError: when a page is not mapped; nothing is written in this case.
        """
        self._still()
        self.emulated.write(address, data)

    def _still(self) -> None:
        if self.emulated.running:
            raise KinstError("the machine is running: a probe's callback cannot change it")

    @in_turn
    def string(self, address: int, limit: int = MAX_STRING) -> str:
        """Read a string up to its terminating NUL, or up to ``limit`` bytes."""
        return text_at(self, int(address), limit)

    def where(self, address: int) -> str:
        """Format an address as ``function+offset``, or in hexadecimal outside all functions."""
        return self.emulated.image.symbols.where(address)

    @in_turn
    def stack(self, frames: int = DEFAULT_FRAMES) -> list[str]:
        """Return the call stack, one line per frame, with inline functions and source lines."""
        return [line.strip() for line in
                self.stacks.text(self.emulated.read_register, frames)]

    @cached_property
    def stacks(self) -> Stacks:
        """Stack unwinder of this machine."""
        return Stacks(self.emulated)

    # -- typed memory -----------------------------------------------------------------------------

    @in_turn
    def value(self, kind: str, address: int) -> Value:
        """Return the value at an address, given its C type, such as ``struct thread``.

        :raises KinstError: when the debug data has no type of that name, or several.
        """
        return load(self, self._type(kind), int(address))

    @in_turn
    def set(self, kind: str, address: int, value: object) -> None:
        """Write a value of a C type to an address.

        :raises TypeError: when the value does not match the type.
        :raises OverflowError: when the value does not fit the type.
        """
        store(self, self._type(kind), int(address), value)

    @in_turn
    def struct(self, tag: str, address: int) -> CStruct:
        """Return the structure at an address: ``machine.struct("thread", address).td_name``."""
        structure = self.value(f"struct {tag}", address)
        if not isinstance(structure, CStruct):
            raise KinstError(f"struct {tag} is declared but not defined")
        return structure

    @in_turn
    def variable(self, name: str) -> Value:
        """Return a kernel variable with its C type.

        :raises KinstError: when the kernel has no such variable, or its type is unknown.
        """
        address = self.kernel.symbol(name)
        ctype = self._types().variable(name, address)
        if ctype is None:
            raise KinstError(f"{self.kernel.path}: the debug data has no type for '{name}'")
        return load(self, ctype, address)

    def prototype(self, function: str, address: int | None = None) -> Procedure:
        """Return the prototype of a function.

        :raises KinstError: when the prototype is unknown.
        """
        procedure = self.kernel.prototypes.of(function, address)
        if procedure is None:
            raise KinstError(f"{self.kernel.path}: the prototype of '{function}' is unknown")
        return procedure

    def _types(self) -> Types:
        types = self.kernel.prototypes.types()
        if types is None:
            raise DebugDataError(f"{self.kernel.path}: types are not available: neither the kernel "
                                 f"nor {self.kernel.path.name}.debug next to it has debug data")
        return types

    def _type(self, name: str) -> Type:
        """Return the type with a given name; each ``*`` after the name denotes a pointer."""
        plain = name.rstrip("* ")
        found = self._types().named(plain)
        if len(found) != 1:
            why = f"{len(found)} types are" if found else "no type is"
            raise KinstError(f"{self.kernel.path}: {why} named '{plain}' (see: kinst type)")
        kind = found[0]
        for _ in range(name.count("*")):
            kind = Pointer(lambda kind=kind: kind)  # type: ignore[misc]
        return kind
