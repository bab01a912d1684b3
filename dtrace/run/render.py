"""Formatting of values, byte for byte as dtrace(1) prints them."""

import datetime
import locale
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dtrace.d.language.formats import Conversion, Piece
from dtrace.d.language.types import CHAR, is_signed, is_string, spelled, width
from dwarf.debug_file import DebugDataError
from dwarf.types import (
    Array,
    Enumeration,
    Float,
    Incomplete,
    Integer,
    Pointer,
    Procedure,
    Qualified,
    Structure,
    Type,
    Typedef,
    Void,
    strip,
)

TRACE_WIDTH, KEY_WIDTH = 33, 50
MAX_WIDTH = 1 << 16  # maximum width of a printf conversion, to limit memory usage
TEXT = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\n\v\f\r\a\b")
ESCAPES = {0: "\\0", 7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r",
           34: '\\"', 92: "\\\\"}


class Symbols(Protocol):
    """Interface for the names of addresses."""

    def address(self, value: int) -> str:
        """Return ``module`function+0x12`` for an address, or the address if it has no name."""

    def frames(self, value: int, callee: int = 0) -> list[str]:
        """Return the lines for one word of a recorded stack, innermost function first.

        :param callee: the word before it; 0: it is the first one.
        """

    def symbol(self, value: int) -> str:
        """Return ``module`function`` for an address, without an offset."""

    def module(self, value: int) -> str: ...

    def start(self, how: str, value: int) -> int:
        """Return the start of the function (``sym``, ``func``) or module (``mod``) at an address.

        If there is none, return the address.
        """


class NoSymbols:
    """Implementation of ``Symbols`` without a kernel: it formats every address as a number."""

    def address(self, value: int) -> str:
        """Return the address as a number."""
        return f"{value:#x}"

    symbol = address
    module = address

    def frames(self, value: int, callee: int = 0) -> list[str]:
        """Return one line for a word of a recorded stack: the address as a number."""
        return [self.address(value)]

    def start(self, how: str, value: int) -> int:
        """Return the address itself."""
        return value


def decoded(content: bytes) -> str:
    """Decode bytes so that writing the text restores the same bytes."""
    return content.decode("utf-8", "surrogateescape")


def number(content: bytes, signed: bool) -> int:
    """Decode a little-endian integer."""
    return int.from_bytes(content, "little", signed=signed)


def traced(content: bytes, quiet: bool, raw: bool, width_: int = TRACE_WIDTH) -> str:
    """Format a value according to its size, as ``trace()`` does."""
    size = len(content)
    if not size:
        return ""
    plain = {8: (16, True), 4: (8, True), 2: (5, False), 1: (3, False)}.get(size)
    if plain is not None:
        digits, signed = plain
        value = number(content, signed)
        return str(value) if quiet else f" {value:{digits}d}"
    return octets(content, quiet, raw, width_)


def octets(content: bytes, quiet: bool, raw: bool, width_: int) -> str:
    """Format bytes that look like a string as a string, and other bytes as a hex dump.

    :param width_: width of the column, negative if the string is at its right side.
    """
    if raw:
        return dump(content)
    for at, byte in enumerate(content):
        if byte == 0 and at and not any(content[at:]):
            text = decoded(content[:at])
            if quiet:
                return text
            return f" {text:>{-width_}}" if width_ < 0 else f"  {text:<{width_}}"
        if byte not in TEXT:
            return dump(content)
    return f"  {decoded(content):<{abs(width_)}}"


def dump(content: bytes) -> str:
    """Format bytes as a hex dump."""
    if not content:
        return ""
    out = ["\n" + " " * 11 + "".join(f"  {d:x}" for d in range(16)) + "  0123456789abcdef\n"]
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        shown = "".join(chr(b) if 32 <= b <= 126 else "." for b in row)
        digits = "".join(f" {b:02x}" for b in row) + "   " * (16 - len(row))
        out.append(f"     {at:5x}:{digits}  {shown}\n")
    return "".join(out)


def stack(content: bytes, symbols: Symbols, indent: int) -> str:
    """Format a recorded stack, with one or more lines per frame."""
    return "\n" + "".join(" " * indent + line + "\n" for line in _frame_lines(content, symbols))


def _frame_lines(content: bytes, symbols: Symbols) -> Iterator[str]:
    """Yield the lines of a recorded stack."""
    callee = 0
    for at in range(0, len(content), 8):
        pc = number(content[at : at + 8], False)
        if not pc:
            break
        yield from symbols.frames(pc, callee)
        callee = pc


def symbolic(how: str, value: int, symbols: Symbols) -> str:
    """Format the value of ``mod()``, ``sym()``, ``usym()`` and similar actions.

    FreeBSD 15.0's dtrace(1) prints nothing for sym() and func(), because it tests the output format
    the wrong way around.
    """
    text = (symbols.module(value) if how in ("mod", "umod") else symbols.address(value)
            if how == "uaddr" else symbols.symbol(value))
    return f"  {text:<50}"


# -- printf ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvertedValue:
    """An argument of a format conversion."""

    content: bytes
    type: Type
    how: str = "value"


def formatted(pieces: Sequence[Piece], arguments: Sequence[ConvertedValue], symbols: Symbols,
              aggregation: Callable[[Conversion], str] | None = None) -> str:
    """Format the output of printf.

    :param aggregation: formats the value of a ``%@`` conversion.
    """
    out, at = [], 0
    for piece in pieces:
        if isinstance(piece, bytes):
            out.append(decoded(piece))
            continue
        flags, wide, precision = piece.flags, piece.width, piece.precision
        if piece.dynamic_width:
            wide = max(min(_signed_argument(arguments[at]), MAX_WIDTH), -MAX_WIDTH)
            at += 1
            if wide < 0:
                flags, wide = flags.replace("0", "") + "-", -wide
        if piece.dynamic_precision:
            precision = min(max(_signed_argument(arguments[at]), 0), MAX_WIDTH) or None
            if piece.width and not piece.dynamic_width:
                wide = 0
            at += 1
        if piece.aggregation:
            assert aggregation is not None
            out.append(aggregation(Conversion(flags, wide, precision, name=piece.name)))
            continue
        out.append(converted(piece.name, flags, wide, precision, arguments[at], symbols))
        at += 1
    return "".join(out)


def wide_character(value: int) -> str:
    """Return the character for a code point, or U+FFFD if the code point is invalid."""
    return chr(value) if value < 0xD800 or 0xE000 <= value < 0x110000 else "\ufffd"


def _signed_argument(argument: ConvertedValue) -> int:
    return number(argument.content[:4], True)


def padded(text: str, flags: str, wide: int) -> str:
    """Pad a text as FreeBSD's printf does; the flag 0 also pads strings and characters."""
    if "-" in flags:
        return text.ljust(wide)
    return text.rjust(wide, "0" if "0" in flags else " ")


def converted(name: str, flags: str, wide: int, precision: int | None, argument: ConvertedValue,
              symbols: Symbols) -> str:
    """Format one conversion of printf."""
    letter = name[-1]
    content = argument.content
    if argument.how in ("stack", "ustack") or letter == "k":
        return _stack_lines(content, flags, wide, symbols)
    if letter in "diouxXpP":
        return integer(name, flags, wide, precision, content, argument.type)
    if letter in "sSI":
        text = decoded(content.split(b"\0")[0])
        if letter == "S":
            text = escaped(content)
        if name in ("ls", "ws"):
            words = [number(content[n : n + 4], False) for n in range(0, len(content), 4)]
            text = "".join(wide_character(w) for w in words).split("\0")[0]
        return padded(text if precision is None else text[:precision], flags, wide)
    if letter == "c":
        value = number(content, False)
        shown = wide_character(value) if name in ("wc", "lc") else decoded(content[:1])
        return padded(shown, flags, wide)
    if letter == "C":
        return padded(escaped(content[:1], ends=False), flags, wide)
    if letter in "aA":
        return padded(symbols.address(number(content, False)), flags, wide)
    if letter in "YT":
        return padded(moment(letter, number(content, True)), flags, wide)
    if letter in "eEfgG":
        return real(letter, flags, wide, precision, content)
    raise AssertionError(name)


def integer(name: str, flags: str, wide: int, precision: int | None, content: bytes, kind: Type
            ) -> str:
    """Format an integer conversion of printf."""
    letter = name[-1]
    signed = letter == "i" or (letter == "d" and is_signed(kind) and name != "hd")
    value = number(content, signed)
    if letter in "oxXp":
        value = number(content, False)
    digits = {"o": "o", "x": "x", "X": "X", "p": "x"}.get(letter, "d")
    text = format(abs(value), digits)
    if letter == "o" and "#" in flags and value:
        text = "0" + text  # the zero counts toward the precision
    if precision is not None:
        text = text.rjust(precision, "0")
    if "'" in flags and digits == "d":
        text = _grouped(text)
    prefix = "-" if value < 0 else ""
    if not prefix and letter in "di" and (signed or name == "hd"):
        prefix = "+" if "+" in flags else " " if " " in flags else ""
    if "#" in flags and value:
        prefix += {"x": "0x", "X": "0X", "p": "0x"}.get(letter, "")
    if "0" in flags and "-" not in flags and precision is None:
        text = text.rjust(wide - len(prefix), "0")
    return padded(prefix + text, flags.replace("0", ""), wide)


def _grouped(text: str) -> str:
    """Group the digits of a number as the environment's locale requires."""
    separator = locale.localeconv().get("thousands_sep")
    if not isinstance(separator, str) or not separator:
        return text
    return f"{int(text):,}".replace(",", separator)


def escaped(content: bytes, ends: bool = True) -> str:
    """Return a string with C escapes for unprintable characters, including the final NUL."""
    out = []
    for byte in content:
        out.append(ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte <= 0x7E else f"\\{byte:03o}"))
        if byte == 0 and ends:
            break
    return "".join(out)


def _stack_lines(content: bytes, flags: str, wide: int, symbols: Symbols) -> str:
    indent = wide if "-" in flags else 0
    return "\n" + "".join(" " * indent + (text if indent else text.rjust(wide)) + "\n"
                          for text in _frame_lines(content, symbols))


def moment(letter: str, nanoseconds: int) -> str:
    """Format nanoseconds since 1970 as a date in the local time zone; round as C, towards 0."""
    seconds = nanoseconds // 10**9 if nanoseconds >= 0 else -(-nanoseconds // 10**9)
    when = datetime.datetime.fromtimestamp(seconds).astimezone()
    if letter == "Y":
        return f"{when:%Y %b} {when.day:2d} {when:%H:%M:%S}"
    return when.strftime("%a, %d %b %G %T %Z")


def real(letter: str, flags: str, wide: int, precision: int | None, content: bytes) -> str:
    """Format a floating-point conversion of printf."""
    if len(content) not in (4, 8):
        return padded("?", flags, wide)
    value = struct.unpack("<f" if len(content) == 4 else "<d", content)[0]
    text = f"%{flags.replace(chr(39), '')}{wide or ''}.{6 if precision is None else precision}" \
           f"{letter}"
    return str(text % value)


# -- print() ---------------------------------------------------------------------------------------


def typed_name(kind: Type, depth: int = 0) -> str:
    """Return the name of a type for ``print()``, with qualifiers and unresolved typedefs."""
    if depth > MAX_NAME:
        raise DebugDataError("damaged debug data: a type is nested too deeply")
    match kind:
        case Qualified():
            inner = typed_name(kind.target, depth + 1)
            return (f"{inner} {kind.qualifier}" if isinstance(kind.target, Pointer)
                    else f"{kind.qualifier} {inner}")
        case Pointer():
            target = kind.target
            if isinstance(target, Procedure):
                return f"{typed_name(target.result, depth + 1)} (*)()"
            inner = typed_name(target, depth + 1)
            return f"{inner}*" if inner.endswith("*") else f"{inner} *"
        case Array():
            counts = f"[{kind.count or 0}]"
            while isinstance(kind.element, Array) and len(counts) < MAX_NAME:
                kind = kind.element
                counts += f"[{kind.count or 0}]"
            inner = typed_name(kind.element, depth + 1)
            if inner.endswith("(*)()"):
                return f"{inner.removesuffix(')()')}{counts})()"
            return f"{inner}{counts}" if inner.endswith("*") else f"{inner} {counts}"
        case Procedure():
            return f"{typed_name(kind.result, depth + 1)} ()"
        case Structure() | Incomplete():
            return f"{kind.kind} {kind.name}"
        case Enumeration():
            return f"enum {kind.name}"
        case Typedef():
            return kind.name
    return spelled(kind)


MAX_NAME = 64  # maximum nesting depth of a type


class Typed:
    """Formatter for ``print()``, which prints values with their types, and structures as blocks."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols

    def text(self, content: bytes, kind: Type) -> str:
        """Format a value with its type."""
        name = typed_name(kind)
        if is_string(kind):
            return f"string {self._characters(content, CHAR, top=True)}\n"
        base = strip(kind)
        value = self._value(content, kind, 0, None, top=True)
        end = "" if isinstance(base, Structure) else "\n"
        return f"{name} {value}{end}"

    def _value(self, content: bytes, kind: Type, depth: int, bits: tuple[int, int] | None,
               top: bool = False) -> str:
        base = strip(kind)
        match base:
            case Structure():
                return self._structure(content, base, depth)
            case Array():
                return self._array(content, base, depth, top)
            case Integer():
                return self._integer(content, base, bits)
            case Enumeration():
                plain = number(content, False)
                if bits is not None:
                    plain = plain >> bits[0] & (1 << bits[1]) - 1
                count = 8 * len(content) if bits is None else bits[1]
                signed = plain - (1 << count) if count and plain >> count - 1 else plain
                name = next((n for n, v in base.values if v in (signed, plain)), None)
                # In a bit-field, a value without a name is unsigned if no enumerator is negative.
                return name if name is not None else str(
                    plain if bits is not None and all(v >= 0 for _n, v in base.values) else signed)
            case Float():
                return self._float(content)
            case Pointer():
                value = number(content, False)
                if isinstance(base.target, Procedure):  # as in dtrace(1), a typedef does not match
                    text = self.symbols.symbol(value)
                    return text if "`" in text else self._hex(value)
                return self._hex(value)
            case Incomplete():
                return "<forward decl>"
            case Void():
                return "<unknown encoding>"
        return "<unknown encoding>"

    @staticmethod
    def _hex(value: int) -> str:
        return f"{value:#x}" if value else "0"

    def _integer(self, content: bytes, kind: Integer, bits: tuple[int, int] | None) -> str:
        if bits is not None:
            return self._hex(number(content, False) >> bits[0] & (1 << bits[1]) - 1)
        if is_plain_char(kind):
            byte = content[0]
            if 0x20 <= byte <= 0x7E:
                return f"'{chr(byte)}'"
            if not byte:
                return "'\\0'"
            return f"'\\{byte if byte < 128 else byte | 0xFFFFFF00:03o}'"
        return self._hex(number(content, False))

    @staticmethod
    def _float(content: bytes) -> str:
        if len(content) not in (4, 8):
            return "<unknown encoding>"
        return f"{struct.unpack('<f' if len(content) == 4 else '<d', content)[0]:+.7e}"

    def _structure(self, content: bytes, kind: Structure, depth: int) -> str:
        inner = "    " * (depth + 1)
        out = ["{\n"]
        for member in kind.members:
            at, size = member.offset // 8, width(member.type)
            if is_string(member.type):  # its size depends on the program
                size = min((one.offset // 8 for one in kind.members if one.offset > member.offset),
                           default=len(content)) - at
            name = typed_name(member.type)
            if not name.endswith(("*", " ")):  # "union " without a name ends with a space
                name += " "
            bits = None
            suffix = ""
            base = strip(member.type)
            if member.width is not None and isinstance(base, Integer):
                if member.width % 8 or member.offset % 8 or member.width // 8 != size:
                    bits = (member.offset % 8, member.width)
                    size = (member.offset % 8 + member.width + 7) // 8
                    # dtrace(1) gives a bit-field declared in D the smallest type with room for it.
                    if member.offset % 8 or member.width not in (8, 16, 32, 64) \
                            or not kind.of_program:
                        suffix = f" :{member.width}"
                if kind.name and not kind.of_program and member.width != 8 * base.size:
                    name = f"{base.name} bitfield "
            if member.width is not None and isinstance(base, Enumeration) and (
                    member.offset % 8 or member.width != 8 * size):
                bits, suffix = (member.offset % 8, member.width), f" :{member.width}"
                size = (member.offset % 8 + member.width + 7) // 8
            value = self._value(content[at : at + size], member.type, depth + 1, bits)
            equals = " = " if member.name else ""
            out.append(f"{inner}{name}{member.name}{suffix}{equals}{value}\n")
        out.append("    " * depth + "}")
        return "".join(out)

    def _array(self, content: bytes, kind: Array, depth: int, top: bool) -> str:
        element, size = kind.element, width(kind.element)
        base = strip(element)
        count = kind.count or 0
        if isinstance(base, Integer) and is_plain_char(base):
            return self._characters(content[: count * size], base, top)
        if isinstance(base, Structure) and not count:
            return "[ " + "    " * depth + "]"
        if isinstance(base, Structure):
            inner = "    " * (depth + 1)
            name = typed_name(element)
            pieces = [content[n * size : (n + 1) * size] for n in range(count)]
            parts = [f"{inner}{name} {self._structure(piece, base, depth + 1)}"
                     for piece in pieces]
            return "[ \n" + ", \n".join(parts) + "\n" + "    " * depth + "]"
        parts = [self._value(content[n * size : (n + 1) * size], element, depth + 1, None,
                             top=True) for n in range(count)]
        return f"[ {', '.join(parts)} ]"

    def _characters(self, content: bytes, kind: Integer, top: bool) -> str:
        """Format an array of characters: as a string if it is one, and can be printed."""
        head, mark, _rest = content.partition(b"\0")
        if mark and all(0x20 <= byte <= 0x7E for byte in head):
            text = f'"{head.decode()}"'
            return text if top else f"[ {text} ]"
        return f"[ {', '.join(self._integer(bytes([byte]), kind, None) for byte in content)} ]"


def is_plain_char(kind: Integer) -> bool:
    """Return whether values of a type are characters for dtrace(1).

    FreeBSD's CTF describes ``char`` as signed, also on architectures where it is unsigned.
    """
    return kind.encoding == "char" and kind.size == 1 and (kind.signed or kind.name == "char")
