"""Format strings of printf, printa, system and freopen (DTrace guide, "Output formatting")."""

from collections.abc import Callable
from dataclasses import dataclass

from dtrace.d.language import syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.types import (
    STACK,
    SYMBOL_ADDRESS,
    USER_ADDRESS,
    is_float,
    is_integer,
    is_pointer,
    is_string,
    special,
    spelled,
    width,
)
from dwarf.types import Array, Integer, Type, Typedef, strip

FLAGS = "#0-+ '"
SIZES = "hlLw"
MAX_NUMBER = 1 << 16  # maximum width or precision, to limit memory usage


@dataclass
class Conversion:
    """A format conversion, such as ``%-*.3lld``.

    :param flags: characters of ``#0-+ '``.
    :param name: size letters and the conversion letter.
    :param aggregation: whether it formats the value of an aggregation (``%@d``).
    :param number: number of the conversion in the format; ``%%`` counts, too.
    """

    flags: str = ""
    width: int = 0
    precision: int | None = None
    dynamic_width: bool = False
    dynamic_precision: bool = False
    name: str = ""
    aggregation: bool = False
    number: int = 0


Piece = bytes | Conversion


def _named(kind: Type, *names: str) -> bool:
    """Return whether a type, without its typedefs, is an integer type with a given name."""
    return not special(kind) and isinstance(strip(kind), Integer) and getattr(
        strip(kind), "name", "") in names


def _any_integer(kind: Type) -> bool:
    return is_integer(kind)


def _address(kind: Type) -> bool:
    return is_pointer(kind) or is_integer(kind)


def _symbol(kind: Type) -> bool:
    return _address(kind) or special(kind) is SYMBOL_ADDRESS


def _user_symbol(kind: Type) -> bool:
    return special(kind) is USER_ADDRESS


def _small(kind: Type) -> bool:
    return is_integer(kind) and width(kind) <= 4


def _text(kind: Type) -> bool:
    found = strip(kind)
    return is_string(kind) or (isinstance(found, Array) and isinstance(
        strip(found.element), Integer) and width(found.element) == 1)


def _wide_text(kind: Type) -> bool:
    found = strip(kind)
    return isinstance(found, Array) and isinstance(strip(found.element), Integer) and width(
        found.element) == 4


def _sixty_four(kind: Type) -> bool:
    return is_integer(kind) and width(kind) == 8


def _stack(kind: Type) -> bool:
    return special(kind) is STACK


def _of(*names: str) -> Callable[[Type], bool]:
    return lambda kind: _named(kind, *names)


def _long_long(kind: Type) -> bool:
    if _named(kind, "long long", "signed long long", "unsigned long long"):
        return True
    for _ in range(64):
        if not isinstance(kind, Typedef):
            return False
        if kind.name in ("int64_t", "uint64_t"):
            return True
        kind = kind.target
    return False


SHORT = _of("short", "signed short")
USHORT = _of("unsigned short")
LONGS = ("long", "signed long")
ALL_LONGS = (*LONGS, "unsigned long")
ALL_SHORTS = ("short", "signed short", "unsigned short")
LONG_LONGS = _of("long long", "signed long long")
ULONG_LONGS = _of("unsigned long long")

_INTEGERS = "char, short, int, long, or long long"
_REAL = "float, double, or long double"
# For each conversion: the accepted types, as named in messages, and a predicate for types.
CONVERSIONS: dict[str, tuple[str, Callable[[Type], bool]]] = {
    "a": ("pointer or integer", _symbol),
    "A": ("pointer or integer (with -p/-c) or _usymaddr (without -p/-c)", _user_symbol),
    "p": ("pointer or integer", _address),
    "c": ("char, short, or int", _small), "C": ("char, short, or int", _small),
    **{letter: (_INTEGERS, _any_integer) for letter in "diouxX"},
    **{letter: (_REAL, is_float) for letter in "eEfgG"},
    **{f"L{letter}": ("long double", lambda kind: is_float(kind) and width(kind) == 16)
       for letter in "eEfgG"},
    "hd": ("short", SHORT), "hi": ("short", SHORT),
    "ho": ("unsigned short", USHORT), "hu": ("unsigned short", USHORT),
    "hx": ("short", _of(*ALL_SHORTS)), "hX": ("short", _of(*ALL_SHORTS)),
    "ld": ("long", _of(*LONGS)), "li": ("long", _of(*LONGS)),
    "lo": ("unsigned long", _of("unsigned long")), "lu": ("unsigned long", _of("unsigned long")),
    "lx": ("long", _of(*ALL_LONGS)), "lX": ("long", _of(*ALL_LONGS)),
    "lld": ("long long", LONG_LONGS), "lli": ("long long", LONG_LONGS),
    "llo": ("unsigned long long", ULONG_LONGS), "llu": ("unsigned long long", ULONG_LONGS),
    "llx": ("long long", _long_long), "llX": ("long long", _long_long),
    "lc": ("int", _of("int", "signed", "signed int")),
    "wc": ("int", _of("int", "signed", "signed int")),
    "ls": ("wchar_t []", _wide_text), "ws": ("wchar_t []", _wide_text),
    "s": ("char [] or string (or use stringof)", _text),
    "S": ("char [] or string (or use stringof)", _text),
    "I": ("char [] or string (or use stringof)", _text),
    "k": ("stack", _stack),
    "P": ("uint16_t", USHORT),
    "T": ("int64_t", _sixty_four), "Y": ("int64_t", _sixty_four),
}


def parse(text: bytes, place: SourcePlace) -> list[Piece]:
    """Split a format string into literal text and conversions.

    :raises DError: if the format string is invalid.
    """
    pieces: list[Piece] = []
    literal = bytearray()
    at, number = 0, 0
    while at < len(text):
        if text[at : at + 1] != b"%":
            literal.append(text[at])
            at += 1
            continue
        number += 1
        if text[at + 1 : at + 2] == b"%":
            literal += b"%"
            at += 2
            continue
        if literal:
            pieces.append(bytes(literal))
            literal = bytearray()
        conversion, at = _conversion(text.decode("latin-1"), at + 1, number, place)
        conversion.number = number
        pieces.append(conversion)
    if literal:
        pieces.append(bytes(literal))
    return pieces


def _conversion(text: str, at: int, number: int, place: SourcePlace) -> tuple[Conversion, int]:
    """Parse the conversion after a ``%``; return the conversion and the offset of its end."""
    conversion = Conversion()
    dotted = digits = False

    def wrong(what: str) -> DError:
        return DError("D_SYNTAX", f"format conversion #{number} {what}", place)

    while True:
        letter = text[at : at + 1]
        if not letter:
            raise wrong("name expected before end of format string")
        at += 1
        if letter == "0" and not dotted and not digits:
            conversion.flags = conversion.flags.replace("-", "") + "0"
        elif letter == "-":
            conversion.flags = conversion.flags.replace("0", "") + "-"
        elif letter in "#+ '":
            conversion.flags += letter
        elif letter.isdigit() and letter.isascii():
            value = int(letter)
            while text[at : at + 1].isdigit() and text[at].isascii():
                value = min(value * 10 + int(text[at]), MAX_NUMBER)
                at += 1
            if text[at : at + 1] == "$":
                raise wrong("uses unsupported positional format (%n$)")
            if dotted:
                conversion.precision = value
            else:
                conversion.width, digits = value, True
        elif letter == "*":
            if conversion.dynamic_precision if dotted else conversion.dynamic_width:
                raise wrong("has more than one '*' specified for the output precision")
            if dotted:
                conversion.dynamic_precision = True
            else:
                conversion.dynamic_width = True
        elif letter == ".":
            if dotted:
                raise wrong("has more than one '.' specified")
            dotted = True
        elif letter == "?":
            conversion.width = 16
        elif letter == "@":
            conversion.aggregation = True
        elif letter in SIZES:
            conversion.name += letter
        elif letter == "%":
            raise wrong("cannot be combined with other format flags: %%")
        else:
            conversion.name += letter
            if conversion.name not in CONVERSIONS:
                raise wrong(f"is undefined: %{conversion.name}")
            if conversion.precision == 0:
                conversion.precision = None
            return conversion, at


def check(
    function: str, pieces: list[Piece], arguments: list[syntax.Expression], place: SourcePlace,
    value: Type | None = None,
) -> None:
    """Check arguments against a format string.

    :param arguments: for printa, the keys of the aggregation.
    :param value: for printa, the type that ``%@`` formats.
    :raises DError: if an argument is missing, superfluous or of the wrong type.
    """
    if not pieces:
        raise DError("D_PRINTF_FMT_EMPTY", f"{function}( ) format string is empty", place)
    at = 0
    for c in (piece for piece in pieces if isinstance(piece, Conversion)):
        number = c.number
        for wanted, mark in ((c.dynamic_width, "*"), (c.dynamic_precision, ".*")):
            if not wanted:
                continue
            if at >= len(arguments):
                raise DError(
                    "D_PRINTF_DYN_PROTO", f"{function}( ) prototype mismatch: conversion "
                    f'#{number} (%{c.name}) is missing a corresponding "{mark}" argument', place)
            if not is_integer(arguments[at].kind):
                raise DError(
                    "D_PRINTF_DYN_TYPE", f"{function}( ) argument #{at + 2} is incompatible with "
                    f"conversion #{number} prototype:\n\tconversion: % {mark} {c.name}\n\t "
                    f"prototype: int\n\t  argument: {spelled(arguments[at].kind)}", place)
            at += 1
        text, accepts = CONVERSIONS[c.name]
        if c.aggregation:
            if value is None:
                raise DError("D_PRINTF_AGG_CONV", "%@ conversion requires an aggregation and is "
                             f"not for use with {function}( )", place)
            kind, subject = value, "aggregating action"
        elif at >= len(arguments):
            raise DError(
                "D_PRINTF_ARG_PROTO", f"{function}( ) prototype mismatch: conversion #{number} "
                f"(%{c.name}) is missing a corresponding value argument", place)
        else:
            kind, subject = arguments[at].kind, f"argument #{at + 2}"
            at += 1
        if not accepts(kind):
            raise DError(
                "D_PRINTF_ARG_TYPE", f"{function}( ) {subject} is incompatible with conversion "
                f"#{number} prototype:\n\tconversion: %{c.name}\n\t prototype: {text}\n\t  "
                f"argument: {spelled(kind)}", place)
    if at < len(arguments) and value is None:
        raise DError("D_PRINTF_ARG_EXTRA", f"{function}( ) prototype mismatch: only {at + 1} "
                     "arguments required by this format string", place)
