"""Files of instructions: one a line, hexadecimal bytes in memory order, ``#`` for remarks."""

import re
import sys

from emu.host.errors import KinstError

MAX_ENCODINGS = 4_000_000


def read_encodings(name: str) -> dict[bytes, str]:
    """The encodings of a file, each with its first line; ``-`` is standard input.

    :raises KinstError: naming the line that is none.
    """
    try:
        if name == "-":
            lines = sys.stdin.buffer.read().decode("ascii", "replace").splitlines()
        else:
            with open(name, encoding="ascii", errors="replace") as file:
                lines = file.read().splitlines()
    except OSError as error:
        raise KinstError(f"{name}: cannot be read: {error.strerror}") from None
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        text = re.sub(r"#.*|\s", "", line)
        if not text:
            continue
        if not re.fullmatch(r"([0-9a-fA-F]{2}){1,15}", text):
            raise KinstError(
                f"{name}:{number}: '{line[:40]}' is not an instruction of 1 to 15 hexadecimal bytes"
            )
        found.setdefault(bytes.fromhex(text), f"line {number}")
        if len(found) > MAX_ENCODINGS:
            raise KinstError(f"{name}: more than {MAX_ENCODINGS} encodings")
    return found
