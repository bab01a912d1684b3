"""Prototypes of a kernel's functions, for checking arguments and formatting results."""

from collections.abc import Sequence

from dtrace.calls.c_library import PROTOTYPES
from dtrace.debug.kernel_types import kernel_types
from dwarf.debug_file import debug_file
from dwarf.dwarf_types import DwarfTypes
from dwarf.linked_types import LinkedTypes
from dwarf.types import Enumeration, Integer, Pointer, Procedure, Type, Types, Void, declare, strip
from dwarf.values import CEnum, Memory, from_bits, is_text, text_at
from emu.elf.image import Image
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import counted
from emu.machine.machine import Machine

MAX_TEXT = 200  # maximum number of bytes of a string to show
UNCHECKED = "--unchecked skips this check (in Python: unchecked=True)"


class Prototypes:
    """Prototypes of a kernel's functions.

    For a kernel without debug data, only the C library's string functions are known.
    """

    def __init__(self, image: Image) -> None:
        self.image = image
        self._types: Types | None = None
        self._asked = False

    def types(self) -> Types | None:
        """Return the kernel's types, or None if the kernel has neither DWARF nor CTF.

        :raises DebugDataError: if the debug data is damaged.
        """
        if not self._asked:
            if debug_file(self.image.file) is not None:
                self._types = kernel_types(self.image)
            else:
                from dwarf.ctf import ctf_types  # imported late: kernels with DWARF do not need it

                self._types = ctf_types(self.image.file)
            self._asked = True
        return self._types

    def of(self, name: str, address: int | None) -> Procedure | None:
        """Return the prototype of a function, or None if the prototype is unknown."""
        types = self.types()
        prototype = types.function(name, address) if types is not None else None
        return prototype if prototype is not None else PROTOTYPES.get(name)

    def changed(self, name: str, address: int) -> bool:
        """Return whether the compiler has changed how a function takes its arguments.

        Calls from elsewhere then do not work (DW_CC_nocall, omitted parameters).
        """
        types = self.types()
        return isinstance(types, DwarfTypes | LinkedTypes) and types.changed(name, address)

    def result(self, name: str, address: int) -> Type | None:
        """Return the type of a function's result, or None if the type is unknown."""
        prototype = self.of(name, address)
        return prototype.result if prototype is not None else None


def check_shape(name: str, procedure: Procedure, given: int) -> None:
    """Check that a call has the right number of arguments, and that all types are supported.

    :raises KinstError: if there are too few or too many arguments, or if a parameter or the result
        does not fit in one general-purpose register.
    """
    wanted = len(procedure.parameters)
    if given < wanted or (given > wanted and not procedure.variadic):
        raise KinstError(f"{declare(procedure, name)}: expected "
                         f"{counted(wanted, 'argument')}, got {given}; {UNCHECKED}")
    for kind in (procedure.result, *(p.type for p in procedure.parameters)):
        inner = strip(kind)
        if not isinstance(inner, Void | Pointer) and not (
                isinstance(inner, Integer | Enumeration) and inner.size <= 8):
            raise KinstError(f"{declare(procedure, name)}: arguments and results of type "
                             f"{declare(kind)} are not supported; {UNCHECKED}")


def check_data(name: str, procedure: Procedure, number: int) -> None:
    """Check that a parameter accepts a string or buffer.

    :param number: index of the argument, from 0.
    :raises KinstError: if the parameter is an integer or an enumeration.
    """
    if number < len(procedure.parameters):
        wanted = procedure.parameters[number].type
        if isinstance(strip(wanted), Integer | Enumeration):
            raise KinstError(f"{declare(procedure, name)}: argument {number + 1} must be "
                             f"{declare(wanted)}, not a string or buffer; {UNCHECKED}")


def check_number(name: str, procedure: Procedure, number: int, given: int) -> None:
    """Check that a number fits its parameter, as a signed or an unsigned value.

    :raises KinstError: if it does not fit.
    """
    if number < len(procedure.parameters):
        wanted = procedure.parameters[number].type
        kind = strip(wanted)
        if isinstance(kind, Integer | Enumeration):
            bits = 8 * kind.size
            if not -(1 << bits - 1) <= given < 1 << bits:
                raise KinstError(f"{declare(procedure, name)}: argument {number + 1}: {given} "
                                 f"does not fit in {declare(wanted)}; {UNCHECKED}")


def registers(
    machine: Machine, name: str, procedure: Procedure, values: Sequence[int]
) -> list[int]:
    """Convert arguments to the 64-bit register values that the calling convention requires.

    Narrow values are extended according to their type.  32-bit values are always sign-extended:
    riscv64 requires that (psABI, "Integer Calling Convention"); amd64 and arm64 ignore the upper
    half.

    :raises KinstError: if a value does not fit, or if a pointer leads to unmapped memory (except 0
        and ``void *``, which may be a user-space address).
    """
    converted = []
    for number, value in enumerate(values):
        if number >= len(procedure.parameters):
            converted.append(value)
            continue
        wanted = procedure.parameters[number].type
        kind = strip(wanted)
        if isinstance(kind, Integer | Enumeration):
            signed = value - (1 << 64) if value >> 63 else value
            check_number(name, procedure, number, signed if kind.size < 8 else value)
            bits = 8 * kind.size
            value &= (1 << bits) - 1
            if value >> bits - 1 and (kind.signed or bits == 32):
                value -= 1 << bits
        elif (isinstance(kind, Pointer) and value and machine.translate(value) is None
              and not isinstance(strip(kind.target), Void)):
            raise KinstError(
                f"{declare(procedure, name)}: argument {number + 1} must be a valid "
                f"{declare(wanted)}, but nothing is mapped at {value:#x}; {UNCHECKED}")
        converted.append(value & (1 << 64) - 1)
    return converted


def plain(memory: Memory, kind: Type | None, bits: int) -> int | None:
    """Convert a result to a Python number according to its type; ``void`` becomes None."""
    if kind is None or not isinstance(strip(kind), Void | Pointer | Integer | Enumeration):
        return bits
    value = from_bits(memory, kind, bits)
    return None if value is None else int(value)


def describe(memory: Memory, kind: Type | None, bits: int) -> str:
    """Format a result according to its type.

    If the type is unknown, show it in decimal and hexadecimal, and as a signed number if that
    differs.

    :return: an empty string for ``void``.
    """
    inner = strip(kind) if kind is not None else None
    if kind is None or not isinstance(inner, Void | Pointer | Integer | Enumeration):
        return _plain(bits)
    if isinstance(inner, Void):
        return ""
    value = from_bits(memory, kind, bits)
    if isinstance(inner, Pointer):
        text = f"({declare(kind)}) {int(value):#x}"
        if is_text(inner.target) and value:
            try:
                text += f' "{text_at(memory, int(value), MAX_TEXT)}"'
            except MemoryAccessError:
                text += " (not mapped)"
        return text
    if isinstance(value, CEnum):
        return str(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value} ({value & (1 << 8 * inner.size) - 1:#x})"


def result_line(call: str, memory: Memory, kind: Type | None, bits: int) -> str:
    """Return the line ``CALL = RESULT``, or ``CALL returned (void)`` for a ``void`` function."""
    text = describe(memory, kind, bits)
    return f"{call} = {text}" if text else f"{call} returned (void)"


def _plain(value: int) -> str:
    text = f"{value} ({value:#x}"
    low = value & 0xFFFFFFFF
    if value >> 63:
        text += f", long {value - (1 << 64)}"
    elif low >> 31 and value >> 32 == 0:
        text += f", int {low - (1 << 32)}"
    return text + ")"
