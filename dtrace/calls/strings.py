"""Escapes in string literals: injected calls reject unknown escapes; D accepts any escape."""

import re

from emu.host.errors import KinstError

ESCAPES = {"n": 10, "t": 9, "r": 13, "0": 0, "a": 7, "b": 8, "f": 12, "v": 11, "e": 27,
           "\\": 92, '"': 34, "'": 39}


class CallSyntaxError(KinstError):
    """Syntax error in an injected call; the message contains the position."""


def unescape(text: str) -> bytes:
    """Resolve the escapes in the text of a string literal of an injected call.

    :param text: the text between the quotes.
    :raises CallSyntaxError: for an unknown escape.
    """
    out = bytearray()
    at = 0
    while at < len(text):
        char = text[at]
        if char != "\\":
            out += char.encode("utf-8", "surrogateescape")
            at += 1
            continue
        code = text[at + 1 : at + 2]
        if code == "x" and re.fullmatch("[0-9a-fA-F]{2}", text[at + 2 : at + 4]):
            out.append(int(text[at + 2 : at + 4], 16))
            at += 4
        elif code in ESCAPES:
            out.append(ESCAPES[code])
            at += 2
        else:
            raise CallSyntaxError(f"unknown escape '\\{code}' in a string")
    return bytes(out)


ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]+|.)", re.DOTALL)


def unescape_c(text: str) -> bytes:
    """Resolve the escapes in the text of a D literal.

    An escape is an octal or hexadecimal number or a letter; any other character after a backslash
    stands for itself.
    """
    out = bytearray()
    at = 0
    for found in ESCAPE.finditer(text):
        out += text[at : found.start()].encode("utf-8", "surrogateescape")
        code, at = found[1], found.end()
        if code[0] in "01234567":
            out.append(int(code, 8) & 255)
        elif code[0] == "x" and len(code) > 1:
            out.append(int(code[1:][-2:], 16))
        elif code in ESCAPES:
            out.append(ESCAPES[code])
        else:
            out += code.encode("utf-8", "surrogateescape")
    out += text[at:].encode("utf-8", "surrogateescape")
    return bytes(out)
