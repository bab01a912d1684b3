"""What the commands share: one line for an error, the console on the terminal, sizes."""

import sys
from collections.abc import Callable
from typing import NoReturn

from emu.errors import KinstError


def run_command(program: str, main: Callable[[], int]) -> NoReturn:
    """Run a command; a KinstError becomes one line and exit status 1."""
    try:
        status = main()
        sys.stdout.flush()
    except KinstError as error:
        sys.stdout.flush()
        print(f"{program}: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:
        sys.stderr.close()
        status = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{program}: {where}{error.strerror or error}", file=sys.stderr)
        status = 1
    try:
        sys.stdout.close()
    except OSError:  # what could not be written was said above
        status = status or 1
    sys.exit(status)


class ConsoleStream:
    """Writes the guest's console to standard output as it comes."""

    def __init__(self) -> None:
        self._line = bytearray()

    def __call__(self, byte: int) -> None:
        if byte == 0x0D:
            return
        sys.stdout.buffer.write(bytes((byte,)))
        if byte == 0x0A or not sys.stdout.isatty():
            sys.stdout.buffer.flush() if byte == 0x0A else None
        else:
            sys.stdout.buffer.flush()


def parse_size(text: str) -> int:
    """``512M``, ``1G``, or a number of MiB.

    :raises KinstError: for anything else.
    """
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units.get(text[-1:].upper())) if text else ("", None)
    if unit is None:
        number, unit = text, 1 << 20
    if not number.isdecimal() or len(number) > 12:
        raise KinstError(f"'{text[:40]}' is not a memory size; give one like 512M or 1G")
    return int(number) * unit


def parse_count(text: str, what: str) -> int:
    """A positive number of at most 18 digits.

    :raises KinstError: for anything else, naming ``what``.
    """
    if not text.isdecimal() or len(text) > 18 or int(text) == 0:
        raise KinstError(f"{what} must be a positive number, not '{text[:40]}'")
    return int(text)
