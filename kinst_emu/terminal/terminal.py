"""Functions that all commands share: error reports, console output, sizes and numbers."""

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from emu.host.errors import KinstError
from emu.host.printable import plain, printable
from emu.host.progress import PROGRESS
from kinst_emu.terminal.shared_output import SharedOutput, shared
from kinst_emu.terminal.status import Screen, StatusLine, drawable

Item = TypeVar("Item")
# Collect garbage rarely: most objects (probes, names, types) stay alive until the command ends.
COLLECT_AFTER = 100_000
# Error numbers of a full or failing device.  Such an error without a file name concerns standard
# output, since emu/host/atomic_file.py and append_file.py name their files.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _interrupted(program: str) -> int:
    """Report an interrupt, and return the exit status for it."""
    print(f"{program}: interrupted", file=sys.stderr)
    return 130


def draws() -> bool:
    """Return whether the standard streams are a terminal that can position the cursor.

    Textual draws on standard error.
    """
    return (sys.stdout.isatty() and sys.stdin.isatty() and sys.stderr.isatty()
            and os.environ.get("TERM", "dumb") not in ("", "dumb"))


def run_command(program: str, main: Callable[[], int]) -> NoReturn:
    """Run a command and exit; a KinstError is printed as one line, with exit status 1."""
    gc.set_threshold(COLLECT_AFTER)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.stderr is None:  # standard error is closed, for example by "2>&-"
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    if sys.stdout is None:
        print(f"{program}: standard output is closed", file=sys.stderr)
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names from files may not be valid text
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = shared(sys.stdout)
    line: StatusLine | None = None
    if sys.stderr.isatty() and drawable(sys.stdout):
        line = StatusLine(sys.stderr)
        line.start()
        PROGRESS.working = line.working
    try:
        try:
            status = main()
        finally:
            if line is not None:
                line.stop()
            end_line()
    except KinstError as error:
        # The message may quote a file, whose control characters must not reach the terminal.
        text = "\n".join(plain(line) for line in str(error).split("\n"))
        print(f"{program}: {text}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = _interrupted(program)
    except RuntimeError as error:
        # Before Python 3.12, an interrupt while a class is created is wrapped in a RuntimeError.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        status = _interrupted(program)
    except BrokenPipeError:
        sys.stderr.close()
        status = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else (
            "standard output: " if error.errno in FULL else "")
        print(f"{program}: {where}{error.strerror or error}", file=sys.stderr)
        status = 1
    output = _shared_output()
    if output is not None and output.changed:
        print(f"{program}: control characters were shown as text, e.g. ^[; --raw sends them to the "
              "terminal", file=sys.stderr)
    try:
        sys.stdout.close()
    except OSError:  # the write error was reported above
        status = status or 1
    gc.freeze()  # exit without another garbage collection
    sys.exit(status)


RAW = ("print the guest's text unchanged on a terminal, including control sequences (default: "
       "show them as text, such as ^[)")


def let_through() -> None:
    """Implement ``--raw``: write the guest's text to a terminal unchanged."""
    output = _shared_output()
    if output is not None:
        output.raw = True


def _shared_output() -> SharedOutput | None:
    output = sys.stdout.stream if isinstance(sys.stdout, Screen) else sys.stdout
    return output if isinstance(output, SharedOutput) else None


def show_byte(byte: int) -> None:
    """Write a byte of the guest's console to standard output."""
    if byte != 0x0D:
        cast(SharedOutput, sys.stdout).console(byte)


def progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield items, with a progress bar if standard error is a terminal.

    :param what: plural noun for the items.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, f"{len(items)} {what}", console=Console(stderr=True),
                     transient=True)


def parse_size(text: str) -> int:
    """Return a memory size in bytes, given as ``512M``, ``1G`` or a number of MiB.

    :raises KinstError: if the text is not a memory size.
    """
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units.get(text[-1:].upper())) if text else ("", None)
    if unit is None:
        number, unit = text, 1 << 20
    if not number.isdecimal() or len(number) > 12:
        raise KinstError(f"'{text[:40]}' is not a memory size; give one like 512M or 1G")
    return int(number) * unit


def parse_count(text: str, what: str) -> int:
    """Parse a positive number of at most 18 digits.

    :param what: name of the number in the error message.
    :raises KinstError: if the text is not a positive number.
    """
    if not text.isdecimal() or len(text) > 18 or int(text) == 0:
        raise KinstError(f"{what} must be a positive number, not '{text[:40]}'")
    return int(text)


def hexdump(address: int, data: bytes) -> str:
    """Format data like ``hexdump -C``, with sixteen bytes per line."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        cells = " ".join(f"{byte:02x}" for byte in row[:8])
        if len(row) > 8:
            cells += "  " + " ".join(f"{byte:02x}" for byte in row[8:])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{address + at:016x}  {cells:<49} |{text}|")
    return "\n".join(lines)


def show_console(text: bytes) -> None:
    """Print text of the guest's console, and end its last line."""
    if text:
        shown = text.replace(b"\r", b"").decode("utf-8", "replace")
        print(shown, end="" if shown.endswith("\n") else "\n")
        sys.stdout.flush()


def end_line() -> None:
    """Flush standard output and end a partial console line before writing to standard error."""
    if isinstance(sys.stdout, SharedOutput | Screen):
        sys.stdout.end_line()
    else:
        sys.stdout.flush()


def check_writable(path: Path, option: str) -> None:
    """Check that an output file can be created, before its contents are computed.

    :raises KinstError: if it cannot be created, or the command line names the same file a second
        time, for example as the input; the message names ``option``.
    """
    try:
        why = _unwritable(path) or _named_twice(path)
    except OSError as error:  # the file name is too long, for example
        why = error.strerror or str(error)
    if why:
        raise KinstError(f"{option} {printable(path)}: {why}")


def _named_twice(path: Path) -> str:
    """Return why a file cannot be an output, if the command line names it more than once."""
    if not path.is_file():
        return ""
    named = 0
    for word in sys.argv[1:]:
        # a word is a file, a C file with arguments, or OPTION=FILE
        candidates = {word, word.partition(" ")[0], word.partition("=")[2]} - {""}
        named += any("\0" not in one and os.path.isfile(one) and path.samefile(one)
                     for one in candidates)
    return "is named twice on the command line; choose another file for the output" if (
        named > 1) else ""


def _unwritable(path: Path) -> str:
    """Return the reason why a file cannot be created, or an empty string if it can."""
    if "\0" in str(path):
        return "a file name cannot contain NUL"
    if path.is_dir():
        return "is a directory; give a file"
    if not path.parent.is_dir():
        return "its directory does not exist"
    if path.exists() and not path.is_file():  # a device such as /dev/stdout is not replaced
        return "" if os.access(path, os.W_OK) else "is not writable"
    return "" if os.access(path.parent, os.W_OK) else "its directory is not writable"
