"""Random changes to bytes, texts and JSON values."""

import copy
import string
from collections.abc import Sequence
from typing import Any

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
           0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 1 << 40, 3 << 30)
WORDS = ("-1", "0", "1e999", "null", "true", "[]", "{}", '"', "18446744073709551616", "\0",
         "\x1b[2J", "NaN", ",", ":", "\n", "A" * 300, "\u00e9", "0x", "(" * 80, "((((1))))", "&",
         "$ ", "#")
VALUES = (None, True, False, 0, 1, -1, 1 << 31, 1 << 63, 1 << 64, 1 << 70, -(1 << 63), 0.5, 1e300,
          float("nan"), float("inf"), "", "0", "zz", "f" * 40, "\u00e9", [], [0], [[]], {},
          {"a": 1}, {"hex": "zz"}, {"hex": "00"})


def bytes_changed(rng: Any, content: bytes, ranges: Sequence[range]) -> bytes:
    """Change, insert or delete a few bytes of a file, and return the result.

    :param ranges: parts of the file, each changed with the same probability whatever its size;
        empty for the whole file
    """
    data = bytearray(content) or bytearray(8)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        part = rng.choice(ranges) if ranges else range(len(data))
        part = range(min(part.start, len(data) - 1), min(part.stop, len(data)))
        at = rng.randrange(part.start, part.stop) if len(part) else 0
        match rng.randrange(8):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 2 | 3:
                size = rng.choice((1, 2, 4, 8))
                value = rng.choice(NUMBERS) & (1 << 8 * size) - 1
                data[at : at + size] = value.to_bytes(size, "little")
            case 4:
                begin = rng.randrange(len(data))
                some = data[begin : begin + rng.choice((4, 16, 64, 512))]
                data[at : at + len(some)] = some
            case 5:
                del data[at : at + rng.choice((1, 4, 64, 4096))]
            case 6:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
            case 7:
                del data[at if rng.random() < 0.3 else len(data) - rng.choice((1, 8, 100)) :]
        if not data:
            return bytes(data)
    return bytes(data)


def text_changed(rng: Any, content: bytes, _ranges: Sequence[range]) -> bytes:
    """Change, insert or delete a few short pieces of a text."""
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 1, 2, 8, 40)))
        more = rng.choice((*WORDS, text[at:end] * 3, "".join(rng.choices(string.printable, k=4))))
        text = text[:at] + rng.choice(("", more, more)) + text[end:]
    return text.encode("utf-8", "surrogateescape")


def value_changed(rng: Any, value: Any) -> Any:
    """Return a copy of a JSON value with one random change."""
    value = copy.deepcopy(value)
    where = value
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            break
        key = rng.choice(keys)
        inner = where[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
            where = inner
            continue
        if isinstance(where, dict) and rng.random() < 0.1:
            del where[key]
        elif isinstance(where, dict) and rng.random() < 0.1:
            where[rng.choice(("zz", "", "pc", "\x1b"))] = rng.choice(VALUES)
        elif isinstance(where, list) and rng.random() < 0.2:
            where.extend([rng.choice(VALUES)] * rng.choice((1, 3, 1000)))
        elif isinstance(inner, int) and rng.random() < 0.5:
            where[key] = inner ^ 1 << rng.randrange(66)
        else:
            where[key] = rng.choice(VALUES)
        break
    return value
