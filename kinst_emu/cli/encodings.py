"""Files of instruction encodings: one per line, hexadecimal in memory order, ``#`` for comments."""

import re
import sys

from emu.host.errors import KinstError

MAX_ENCODINGS = 4_000_000


def read_encodings(name: str) -> dict[bytes, str]:
    """Return the encodings in a file, each with the line where it first appears.

    :param name: file name, or ``-`` for standard input.
    :raises KinstError: when the file cannot be read, is too long, or a line is not an encoding.
    """
    try:
        if name == "-":
            lines = sys.stdin.buffer.read().decode("ascii", "replace").splitlines()
        else:
            with open(name, encoding="ascii", errors="replace") as file:
                lines = file.read().splitlines()
    except OSError as error:
        raise KinstError(f"{name}: cannot be read: {error.strerror}") from None
    encodings: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        text = re.sub(r"#.*|\s", "", line)
        if not text:
            continue
        if not re.fullmatch(r"([0-9a-fA-F]{2}){1,15}", text):
            raise KinstError(
                f"{name}:{number}: '{line[:40]}' is not an instruction: give 1 to 15 bytes in "
                "hexadecimal"
            )
        encodings.setdefault(bytes.fromhex(text), f"line {number}")
        if len(encodings) > MAX_ENCODINGS:
            raise KinstError(f"{name}: contains more than {MAX_ENCODINGS} encodings")
    return encodings
