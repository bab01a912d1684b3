"""JSON from files of others: what it may become in memory is bounded before it is read."""

import json
import re
from typing import Any

STRUCTURE = b",[{"  # as many of these, and one more, has a text values at the most
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def read_json(text: bytes, most: int) -> Any:
    """What a text says.

    :param most: values that it may have, keys not counted: each takes about 100 bytes.
    :raises ValueError: when it has more, or is no JSON.
    :raises RecursionError: when its values lie too deep in each other.
    """
    check(text, most)
    return json.loads(text)


def fits(text: bytes, most_values: int, most_bytes: int) -> bool:
    """Whether a text that is about to be written can be read again within these limits."""
    try:
        check(text, most_values)
    except ValueError:
        return False
    return len(text) <= most_bytes


def check(text: bytes, most: int) -> None:
    """Count the values of a text.

    :raises ValueError: when it may have more.
    """
    if sum(text.count(bytes([mark])) for mark in STRUCTURE) < most:
        return
    plain = STRING.sub(b"", text)
    if sum(plain.count(bytes([mark])) for mark in STRUCTURE) >= most:
        raise ValueError(f"JSON of more than {most} values")
