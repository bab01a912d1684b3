"""Values that a user gives to the guest's variables before a call or command: ``maxproc=16``."""

import re
from dataclasses import dataclass

from dtrace.calls.places import Place, Places
from dwarf.types import Enumeration, Integer, Pointer, Type, declare, strip
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Machine

NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,20})")
MOST_NAMES = 10  # maximum number of enumerators in a message
MOST = 8  # maximum size in bytes of a value that can be set


@dataclass(frozen=True)
class Done:
    """A variable that was set.

    :param text: the expression, as the user wrote it.
    :param before: its value before, as an unsigned number.
    """

    text: str
    place: Place
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.text}: {self._shown(self.before)} -> {self._shown(self.after)}"

    def _shown(self, value: int) -> str:
        kind = None if self.place.type is None else strip(self.place.type)
        if isinstance(kind, Pointer):
            return f"{value:#x}"
        if isinstance(kind, Integer | Enumeration) and kind.signed and (
                value >> 8 * self.place.size - 1):
            return str(value - (1 << 8 * self.place.size))
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
        machine.write(done.place.address, done.after.to_bytes(done.place.size, "little"))
    return wanted


def _checked(machine: Machine, places: Places, text: str) -> Done:
    where, value = split(text)
    place = places.find(where)
    what = f"--set '{text[:80]}'"
    kind = None if place.type is None else strip(place.type)
    if kind is not None and not isinstance(kind, Integer | Enumeration | Pointer):
        raise KinstError(f"{what}: {where} is a {declare(kind)}; set one of its members or "
                         "elements that is a number or a pointer")
    if not 0 < place.size <= MOST:
        raise KinstError(f"{what}: {where} has {place.size} bytes; at most {MOST} can be set")
    try:
        before = int.from_bytes(machine.read(place.address, place.size), "little")
    except MemoryAccessError as error:
        raise KinstError(f"{what}: {error}") from None
    bits = 8 * place.size
    number = _value(kind, value, what)
    signed = isinstance(kind, Integer | Enumeration) and kind.signed
    least, most = (-(1 << bits - 1) if signed else 0), (1 << bits - signed) - 1
    if not least <= number <= most and not (signed and most < number < 1 << bits
                                            and value[:2].lower() == "0x"):
        raise KinstError(f"{what}: {value} does not fit; {where} holds {least} to {most}")
    return Done(where, place, before, number & (1 << bits) - 1)


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
