"""D's subroutines on strings, and others that the native executor does not implement.

They take bytes and integers; None is a null pointer.  ``SUBROUTINES`` defines how their arguments
and results are converted.  See "Actions and subroutines" in the DTrace guide.
"""

import ipaddress
import re
from collections.abc import Callable

from dtrace.bpf.interpreter import signed
from dtrace.bpf.layout import Fault

MAX_BASE = 36
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
AF_INET, AF_INET6 = 2, 28
U64 = 1 << 64


class SubroutineFault(Exception):
    """Fault in a subroutine, which ends the clause.

    :param fault: kind of the fault.
    """

    def __init__(self, fault: Fault, value: int = 0) -> None:
        super().__init__(fault, value)
        self.fault, self.value = fault, value


def strchr(text: bytes, character: int) -> bytes | None:
    """Return the rest of a string from the first occurrence of a character, or None if absent."""
    at = (text + b"\0").find(bytes([character & 255]))
    return None if at < 0 else text[at:]


def strrchr(text: bytes, character: int) -> bytes | None:
    """Return the rest of a string from the last occurrence of a character, or None if absent."""
    at = (text + b"\0").rfind(bytes([character & 255]))
    return None if at < 0 else text[at:]


def strstr(text: bytes, part: bytes) -> bytes | None:
    """Return the rest of a string from the first occurrence of a substring, or None if absent."""
    at = text.find(part)
    return None if at < 0 else text[at:]


def index(text: bytes, part: bytes, start: int | None) -> int:
    """Return the offset of a substring's first occurrence, or -1 if there is no occurrence.

    :param start: the offset at which to begin the search (None if the program omitted it).
    """
    at = max(start or 0, 0)
    if at >= len(text) and (start is not None or text):
        if at == 0 and not part:
            return 0
        return len(text) if not part else -1
    return text.find(part, at)


def rindex(text: bytes, part: bytes, start: int | None) -> int:
    """Return the offset of a substring's last occurrence, or -1 if there is no occurrence.

    :param start: the highest offset to consider (None if the program omitted it).
    """
    if start is None:
        return text.rfind(part)
    if start < 0:
        return 0 if not part else -1
    return text.rfind(part, 0, min(start, len(text)) + len(part))


def substr(text: bytes, start: int, count: int | None, limit: int) -> bytes:
    """Return the part of a string that D's ``substr()`` selects.

    :param limit: the count to use when the program gives none.
    """
    size = len(text)
    count = limit if count is None else count
    if start < 0:
        start += size
        if start < 0 < start + count:
            count += start
            start = 0
    if start >= size or start < 0:
        return b""
    if count < 0:
        count += size - start
        if count < 0:
            return b""
    return text[start : start + count]


def basename(path: bytes) -> bytes:
    """Return the last component of a path."""
    if not path:
        return b"."
    return path.rstrip(b"/").rpartition(b"/")[2] or b"/"


def dirname(path: bytes) -> bytes:
    """Return a path without its last component."""
    if not path:
        return b"."
    stripped = path.rstrip(b"/")
    if not stripped:
        return b"/"
    head, mark, _last = stripped.rpartition(b"/")
    if not mark:
        return b"."
    return head.rstrip(b"/") or b"/"


def cleanpath(path: bytes) -> bytes:
    """Simplify a path by resolving ``//``, ``/./`` and ``/../``."""
    out: list[bytes] = []
    absolute = path.startswith(b"/")
    parts = path.split(b"/")
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == b"" and not last:
            continue
        if part == b"." and not last and (out or absolute or number):
            continue
        if part == b".." and ((out and out[-1] != b"..") or absolute):
            if out:
                out.pop()
            if last:
                out.append(b"")
            continue
        out.append(part)
    return (b"/" if absolute else b"") + b"/".join(out)


def lltostr(value: int, base: int | None) -> bytes:
    """Format a 64-bit integer, signed if the base is 10; bases 8 and 16 have a prefix.

    :param base: from 2 to 36; None means 10.
    :raises SubroutineFault: if the base is invalid.
    """
    base = 10 if base is None else base
    if not 2 <= base <= MAX_BASE:
        raise SubroutineFault(Fault.ILLEGAL_OPERATION)
    if base == 10:
        return str(value).encode()
    value %= U64
    digits = ""
    while value or not digits:
        value, digit = divmod(value, base)
        digits = DIGITS[digit] + digits
    if base == 16:
        return b"0x" + digits.encode()
    if base == 8 and digits != "0":
        return b"0" + digits.encode()
    return digits.encode()


def strtoll(text: bytes, base: int | None) -> int:
    """Parse an integer at the beginning of a string.

    :param base: from 2 to 36; None means 10.
    :raises SubroutineFault: if the base is invalid.
    """
    base = 10 if base is None else base
    if not 2 <= base <= MAX_BASE:
        raise SubroutineFault(Fault.ILLEGAL_OPERATION)
    word = text.lstrip(b" \t").decode("latin-1").lower()
    negative = word.startswith("-")
    if word[:1] in ("-", "+"):
        word = word[1:]
    if base == 16 and word.startswith("0x"):
        word = word[2:]
    value = 0
    for letter in word:
        digit = DIGITS.find(letter)
        if not 0 <= digit < base:
            break
        value = value * base + digit
    return -value if negative else value


def inet_ntoa(address: bytes) -> bytes:
    """Format an IPv4 address."""
    return str(ipaddress.IPv4Address(address)).encode()


def inet_ntoa6(address: bytes, mapped: bool = False) -> bytes:
    """Format an IPv6 address.

    :param mapped: whether an IPv4 address within it keeps its prefix ``::ffff:`` or ``::``.
    """
    parsed = ipaddress.IPv6Address(address)
    if parsed.ipv4_mapped is not None:
        return (b"::ffff:" if mapped else b"") + str(parsed.ipv4_mapped).encode()
    if address[:12] == bytes(12) and address[12:] > b"\0\0\0\1":
        return (b"::" if mapped else b"") + inet_ntoa(address[12:])
    return _groups(address)


def _groups(address: bytes) -> bytes:
    """Format an IPv6 address with the longest run of zero words replaced by ``::``.

    If several runs are longest, this is the first. A single zero word is a run unless it is the
    last word.
    """
    words = [int.from_bytes(address[n : n + 2]) for n in range(0, 16, 2)]
    best, longest, at = 0, 0, 0
    while at < len(words):
        end = at
        while end < len(words) and not words[end]:
            end += 1
        if end - at > longest and not (end - at == 1 and end == len(words)):
            best, longest = at, end - at
        at = max(end, at + 1)
    if not longest:
        return b":".join(b"%x" % word for word in words)
    left, right = words[:best], words[best + longest :]
    return b":".join(b"%x" % w for w in left) + b"::" + b":".join(b"%x" % w for w in right)


def inet_ntop(family: int, read: Callable[[int], bytes]) -> bytes:
    """Format an IPv4 or IPv6 address.

    :param read: returns the given number of bytes of the address.
    :raises SubroutineFault: if the address family is not supported.
    """
    if family == AF_INET:
        return inet_ntoa(read(4))
    if family == AF_INET6:
        return inet_ntoa6(read(16), mapped=True)
    raise SubroutineFault(Fault.ILLEGAL_OPERATION)


def token(text: bytes, separators: bytes, most: int) -> tuple[int, int] | None:
    """Return the bounds of the first token for ``strtok()``, or None if the string has no token.

    The search for the next token begins at the separator that ends this one.

    :param most: maximum length of a token in bytes; a longer one is truncated.
    """
    begin = next((n for n, byte in enumerate(text) if byte not in separators), len(text))
    if begin == len(text):
        return None
    end = next((n for n, byte in enumerate(text) if n > begin and byte in separators), len(text))
    return begin, min(end, begin + most)


# -- JSON ------------------------------------------------------------------------------------------

_SPACE = b" \t\n\r"
# As DTrace has it, a sign may be anywhere in an exponent, and a number may begin with zeros.
_NUMBER = re.compile(rb"-?[0-9]*(?:\.[0-9]*)?(?:[eE][0-9+-]*)?")
_WORD = re.compile(rb"[a-z]+")
_ESCAPE = re.compile(rb"\\(?:u[0-9A-Fa-f]{4}|[^u])", re.DOTALL)


class _Json:
    """Parser that finds an element in a JSON text."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def skip(self) -> bytes:
        """Skip white space, and return the next character."""
        while self.at < len(self.text) and self.text[self.at] in _SPACE:
            self.at += 1
        return self.text[self.at : self.at + 1]

    def string(self) -> bytes | None:
        """Read a string and return its contents.

        Return None if the closing quote is missing, or ``\\u`` lacks four hexadecimal digits.
        """
        begin = self.at + 1
        at = begin
        while at < len(self.text):
            if self.text[at : at + 1] == b"\\":
                escape = _ESCAPE.match(self.text, at)
                if escape is None:
                    return None
                at = escape.end()
            elif self.text[at : at + 1] == b'"':
                self.at = at + 1
                return self.text[begin:at]
            else:
                at += 1
        return None

    def element(self) -> bytes | None:
        """Read a JSON value, and return its text, or None if the value is invalid."""
        first = self.skip()
        if first == b'"':
            return self.string()
        begin = self.at
        if first in (b"{", b"["):
            depth = 0
            while self.at < len(self.text):
                letter = self.text[self.at : self.at + 1]
                if letter == b'"':
                    if self.string() is None:
                        return None
                    continue
                depth += (letter in b"{[") - (letter in b"}]")
                self.at += 1
                if not depth:
                    return self.text[begin : self.at]
            return None
        match = (_WORD if first.islower() else _NUMBER).match(self.text, begin)
        word = b"" if match is None else match[0]
        self.at = begin + len(word)
        following = self.text[self.at : self.at + 1]
        if not word or not following or word[:1] == b".":
            return None
        if first.islower():
            return word if word in (b"true", b"false", b"null") else None
        # Hexadecimal numbers, and signs outside an exponent, are not JSON.
        return None if following in b"xX+-" and b"e" not in word.lower() else word

    def enter(self, part: bytes) -> bool:
        """Move to a key's value or an array element; return whether the value or element exists."""
        kind = self.skip()
        if kind not in (b"{", b"["):
            return False
        self.at += 1
        number, index = 0, signed(strtoll(part, 10))  # as in DTrace, text without digits is index 0
        while True:
            letter = self.skip()
            if letter in (b"", b"}", b"]"):
                return False
            if kind == b"{":
                key = self.string() if letter == b'"' else None
                if key is None or self.skip() != b":":
                    return False
                self.at += 1
                if key == part:
                    self.skip()
                    return True
            elif number == index:
                return True
            if self.element() is None:
                return False
            number += 1
            if self.skip() == b",":
                self.at += 1
            elif self.skip() not in (b"}", b"]"):
                return False


def json(text: bytes, path: bytes) -> bytes | None:
    """Return the text of a JSON element, or None if the element is missing or the JSON is invalid.

    :param path: keys and array indices, as in ``a.b[1]``.
    """
    parts = [p for p in path.replace(b"]", b"").replace(b"[", b".").removeprefix(b".").split(b".")]
    reader = _Json(text)
    if reader.skip() not in (b"{", b"["):
        return None
    for part in parts:
        if not reader.enter(part):
            return None
    return reader.element()
