"""What a kernel's functions take and give: calls are held to it, and results shown by it."""

from dtrace.c_library import PROTOTYPES
from dtrace.kernel_types import kernel_types
from dwarf.debug_file import DebugDataError, debug_file
from dwarf.types import (
    Enumeration,
    Integer,
    Pointer,
    Procedure,
    Type,
    Types,
    Void,
    declare,
    strip,
)
from dwarf.values import CEnum, Memory, from_bits, is_text, text_at
from emu.elf import Image
from emu.errors import KinstError, MemoryAccessError
from emu.machine import Machine

STRING = "a string or buffer"
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
            self._asked = True
            if debug_file(self.image.path) is not None:
                self._types = kernel_types(self.image)
            else:
                try:
                    self._types = kernel_types(self.image, "ctf")
                except DebugDataError:
                    self._types = None
        return self._types

    def of(self, name: str, address: int | None) -> Procedure | None:
        """The prototype of a function; None when it is not known."""
        types = self.types()
        found = types.function(name, address) if types is not None else None
        return found if found is not None else PROTOTYPES.get(name)

    def result(self, name: str, address: int) -> Type | None:
        found = self.of(name, address)
        return found.result if found is not None else None


def check_count(name: str, procedure: Procedure, given: int) -> None:
    """:raises KinstError: when a call has too few arguments, or too many."""
    wanted = len(procedure.parameters)
    if given < wanted or (given > wanted and not procedure.variadic):
        raise KinstError(f"{declare(procedure, name)}: takes {wanted} "
                         f"argument{'' if wanted == 1 else 's'}, {given} given; {UNCHECKED}")


def check_kind(name: str, procedure: Procedure, number: int, given: int | None) -> None:
    """Hold an argument to its parameter.

    :param number: of the argument, from 0.
    :param given: an integer; None for a string or buffer.
    :raises KinstError: when it is none.
    """
    if number >= len(procedure.parameters):
        return
    wanted = procedure.parameters[number].type
    kind = strip(wanted)
    where = f"{declare(procedure, name)}: argument {number + 1}"
    if given is None and isinstance(kind, Integer | Enumeration):
        raise KinstError(f"{where} is {declare(wanted)}, not {STRING}; {UNCHECKED}")
    if given is not None and isinstance(kind, Integer | Enumeration):
        bits = 8 * min(kind.size, 8)
        if not -(1 << bits - 1) <= given < 1 << bits:
            raise KinstError(f"{where}: {given} does not fit {declare(wanted)}; {UNCHECKED}")


def check_address(
    machine: Machine, name: str, procedure: Procedure, number: int, value: int
) -> None:
    """Hold the value of a pointer argument to what is mapped.  ``void *`` may be of user space.

    :raises KinstError: when nothing is there.
    """
    if number >= len(procedure.parameters) or value == 0:
        return
    wanted = procedure.parameters[number].type
    kind = strip(wanted)
    if (isinstance(kind, Pointer) and not isinstance(strip(kind.target), Void)
            and machine.translate(value) is None):
        raise KinstError(f"{declare(procedure, name)}: argument {number + 1} is "
                         f"{declare(wanted)}, and nothing is mapped at {value:#x}; {UNCHECKED}")


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


def _plain(value: int) -> str:
    text = f"{value} ({value:#x}"
    low = value & 0xFFFFFFFF
    if value >> 63:
        text += f", long {value - (1 << 64)}"
    elif low >> 31 and value >> 32 == 0:
        text += f", int {low - (1 << 32)}"
    return text + ")"
