"""What a kernel's functions take and give: calls are held to it, and results shown by it."""

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
from emu.machine.machine import Machine

MAX_TEXT = 200  # bytes of a string that is shown
UNCHECKED = "to pass it all the same: --unchecked (in Python: unchecked=True)"


class Prototypes:
    """The prototypes of a kernel; of one without debug data, those of the C library are known."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._types: Types | None = None
        self._asked = False

    def types(self) -> Types | None:
        """:raises DebugDataError: when the debug data is damaged."""
        if not self._asked:
            if debug_file(self.image.file) is not None:
                self._types = kernel_types(self.image)
            else:
                from dwarf.ctf import ctf_types  # most kernels have DWARF

                self._types = ctf_types(self.image.file)
            self._asked = True
        return self._types

    def of(self, name: str, address: int | None) -> Procedure | None:
        """The prototype of a function; None when it is not known."""
        types = self.types()
        found = types.function(name, address) if types is not None else None
        return found if found is not None else PROTOTYPES.get(name)

    def changed(self, name: str, address: int) -> bool:
        """Whether the compiler has changed how a function takes its arguments, so that no call from
        elsewhere fits (DW_CC_nocall, parameters that are left out)."""
        types = self.types()
        return isinstance(types, DwarfTypes | LinkedTypes) and types.changed(name, address)

    def result(self, name: str, address: int) -> Type | None:
        found = self.of(name, address)
        return found.result if found is not None else None


def check_shape(name: str, procedure: Procedure, given: int) -> None:
    """:raises KinstError: when a call has too few arguments, or too many; when a parameter or the
        result is not of one general register."""
    wanted = len(procedure.parameters)
    if given < wanted or (given > wanted and not procedure.variadic):
        raise KinstError(f"{declare(procedure, name)}: takes {wanted} "
                         f"argument{'' if wanted == 1 else 's'}, {given} given; {UNCHECKED}")
    for kind in (procedure.result, *(p.type for p in procedure.parameters)):
        inner = strip(kind)
        if not isinstance(inner, Void | Pointer) and not (
                isinstance(inner, Integer | Enumeration) and inner.size <= 8):
            raise KinstError(f"{declare(procedure, name)}: how {declare(kind)} is passed is not "
                             f"known; {UNCHECKED}")


def check_data(name: str, procedure: Procedure, number: int) -> None:
    """Hold a string or buffer to its parameter.

    :param number: of the argument, from 0.
    :raises KinstError: when a number is wanted.
    """
    if number < len(procedure.parameters):
        wanted = procedure.parameters[number].type
        if isinstance(strip(wanted), Integer | Enumeration):
            raise KinstError(f"{declare(procedure, name)}: argument {number + 1} is "
                             f"{declare(wanted)}, not a string or buffer; {UNCHECKED}")


def check_number(name: str, procedure: Procedure, number: int, given: int) -> None:
    """Hold a number to its parameter: as a signed or an unsigned one it must fit.

    :raises KinstError: when it does not.
    """
    if number < len(procedure.parameters):
        wanted = procedure.parameters[number].type
        kind = strip(wanted)
        if isinstance(kind, Integer | Enumeration):
            bits = 8 * kind.size
            if not -(1 << bits - 1) <= given < 1 << bits:
                raise KinstError(f"{declare(procedure, name)}: argument {number + 1}: {given} "
                                 f"does not fit {declare(wanted)}; {UNCHECKED}")


def registers(
    machine: Machine, name: str, procedure: Procedure, values: Sequence[int]
) -> list[int]:
    """Arguments as the calling conventions want them in registers of 64 bits.

    Narrow ones are extended by their sign, and what has 32 bits always so: riscv64 wants that
    (psABI, "Integer Calling Convention"), amd64 and arm64 do not look at the upper half.

    :raises KinstError: when a value does not fit, or nothing is mapped where a pointer points to
        (but 0, and ``void *``, which may be of user space).
    """
    found = []
    for number, value in enumerate(values):
        if number >= len(procedure.parameters):
            found.append(value)
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
                f"{declare(procedure, name)}: argument {number + 1} is {declare(wanted)}, and "
                f"nothing is mapped at {value:#x}; {UNCHECKED}")
        found.append(value & (1 << 64) - 1)
    return found


def plain(memory: Memory, kind: Type | None, bits: int) -> int | None:
    """A result for programs: a number by its type, null for ``void``."""
    if kind is None or not isinstance(strip(kind), Void | Pointer | Integer | Enumeration):
        return bits
    value = from_bits(memory, kind, bits)
    return None if value is None else int(value)


def describe(memory: Memory, kind: Type | None, bits: int) -> str:
    """A result as a person reads it: by its type; else decimal, hexadecimal, and signed where that
    differs.

    :return: empty for ``void``.
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
    """A call and its result; of one whose last function is ``void``, that it has returned."""
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
