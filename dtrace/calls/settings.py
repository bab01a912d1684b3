"""Values that a user gives to the guest's variables before a call or command: ``maxproc=16``."""

import re
from dataclasses import dataclass

from dtrace.calls.places import Place, Places
from dwarf.types import Enumeration, Integer, Pointer, Type, declare, strip
from emu.elf.symbols import STT_OBJECT
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Machine

NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,20})")
MOST_NAMES = 10  # maximum number of enumerators in a message
MOST = 8  # maximum size in bytes of a value that can be set


@dataclass(frozen=True)
class Done:
    """A variable that was set.

    :param text: the expression, as the user wrote it.
    :param size: number of bytes in which it is.
    :param shift: number of its lowest bit in them.
    :param width: number of its bits.
    :param before: its value before, as an unsigned number.
    """

    text: str
    place: Place
    size: int
    shift: int
    width: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.text}: {self._shown(self.before)} -> {self._shown(self.after)}"

    def _shown(self, value: int) -> str:
        kind = None if self.place.type is None else strip(self.place.type)
        if isinstance(kind, Pointer):
            return f"{value:#x}"
        if isinstance(kind, Integer | Enumeration) and kind.signed and (
                value >> self.width - 1):
            return str(value - (1 << self.width))
        return str(value)


def split(text: str) -> tuple[str, str]:
    """Return the place and the value of ``PLACE=VALUE``.

    :raises KinstError: if the text has another form.
    """
    place, equals, value = text.rpartition("=")
    if not equals or not place.strip() or not value.strip():
        raise KinstError(f"--set '{text[:80]}': give a place and a value, e.g. 'maxproc=16'")
    return place.strip(), value.strip()


def set_all(machine: Machine, texts: list[str]) -> list[Done]:
    """Set variables and members, each given as ``PLACE=VALUE``; return what was done.

    All are checked before the first one is set.  PLACE is a C expression as for ``Places``; VALUE
    is a number, the name of an enumerator, or NULL for a pointer.

    :raises KinstError: if a place cannot be set, or a value does not fit.
    """
    places = Places(machine)
    wanted = [_checked(machine, places, text) for text in texts]
    for done in wanted:
        whole = int.from_bytes(machine.read(done.place.address, done.size), "little")
        mask = (1 << done.width) - 1 << done.shift
        machine.write(done.place.address, (whole & ~mask | done.after << done.shift).to_bytes(
            done.size, "little"))
    return wanted


def _checked(machine: Machine, places: Places, text: str) -> Done:
    where, value = split(text)
    place = places.find(where)
    what = f"--set '{text[:80]}'"
    kind = None if place.type is None else strip(place.type)
    if place.number:
        raise KinstError(f"{what}: {where} is a number or a register, not a variable; to set what "
                         "it points to, give its type, e.g. *(struct thread *)rdi")
    if kind is not None and not isinstance(kind, Integer | Enumeration | Pointer):
        raise KinstError(f"{what}: {where} is a {declare(kind)}; set one of its members or "
                         "elements that is a number or a pointer")
    shift, width = place.bits or (0, 8 * (place.size if kind is not None
                                          else _untyped(machine, where, what)))
    size = (shift + width + 7) // 8
    if not 0 < size <= MOST:
        raise KinstError(f"{what}: {where} has {size} bytes; at most {MOST} can be set")
    try:
        before = int.from_bytes(machine.read(place.address, size), "little") >> shift
    except MemoryAccessError as error:
        raise KinstError(f"{what}: {error}") from None
    number = _value(kind, value, what)
    signed = isinstance(kind, Integer | Enumeration) and kind.signed
    least, most = (-(1 << width - 1) if signed else 0), (1 << width - signed) - 1
    if not least <= number <= most and not (signed and most < number < 1 << width
                                            and value[:2].lower() == "0x"):
        raise KinstError(f"{what}: {value} does not fit; {where} holds {least} to {most}")
    mask = (1 << width) - 1
    return Done(where, place, size, shift, width, before & mask, number & mask)


def _untyped(machine: Machine, name: str, what: str) -> int:
    """Return the size in bytes of a variable whose type is unknown."""
    symbol = machine.image.symbols.find(name.rpartition("`")[2])
    if symbol is None or symbol.kind != STT_OBJECT or symbol.size not in (1, 2, 4, 8):
        raise KinstError(f"{what}: {name} is not a variable with a known type")
    return symbol.size


def _value(kind: Type | None, text: str, what: str) -> int:
    if NUMBER.fullmatch(text):
        return int(text, 16 if "x" in text.lower() else 10)
    if isinstance(kind, Enumeration):
        for name, number in kind.values:
            if name == text:
                return number
    if text == "NULL" and isinstance(kind, Pointer):
        return 0
    names = "" if not isinstance(kind, Enumeration) else (
        f" or one of {', '.join(name for name, _number in kind.values[:MOST_NAMES])}")
    raise KinstError(f"{what}: '{text[:40]}' is not a number{names}")
