"""Parser for JSON from untrusted files, with a limit on the number of values."""

import json
import re
from typing import Any

STRUCTURE = b",[{"  # JSON text with n of these characters has at most n + 1 values
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def read_json(text: bytes, most: int) -> Any:
    """Parse JSON text if it has at most a given number of values.

    :param most: maximum number of values, not counting keys; each takes about 100 bytes.
    :raises ValueError: if the text has more values or is not JSON.
    :raises RecursionError: if the values are nested too deeply.
    """
    check(text, most)
    return json.loads(text)


def fits(text: bytes, most_values: int, most_bytes: int) -> bool:
    """Return whether JSON text can be read back within the given limits."""
    try:
        check(text, most_values)
    except ValueError:
        return False
    return len(text) <= most_bytes


def check(text: bytes, most: int) -> None:
    """Check that JSON text has at most ``most`` values.

    :raises ValueError: if there may be more than ``most``.
    """
    if sum(text.count(bytes([mark])) for mark in STRUCTURE) < most:
        return
    plain = STRING.sub(b"", text)
    if sum(plain.count(bytes([mark])) for mark in STRUCTURE) >= most:
        raise ValueError(f"JSON has more than {most} values")
