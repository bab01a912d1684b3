"""Status line on a terminal, which shows what a command is doing while it prints nothing."""

import contextlib
import io
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO, cast

from kinst_emu.terminal.shared_output import SharedOutput

# seconds without output before the status line appears; seconds between updates of the line
SILENCE, PERIOD = 0.7, 0.2
CLEAR = "\r\x1b[K"
WIDTH = 80  # width in columns assumed for a terminal that does not report a width


def drawable(output: TextIO) -> bool:
    """Return whether the status line may be drawn while standard output is the given stream.

    It may not if the stream is a pipe, whose reader may write to the same terminal.
    """
    if os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        return output.isatty() or stat.S_ISREG(os.fstat(output.fileno()).st_mode) or (
            os.path.samestat(os.fstat(output.fileno()), os.stat(os.devnull)))
    except (OSError, ValueError):
        return False


class StatusLine:
    """Status line that a thread draws on a terminal.

    :param screen: the terminal.
    """

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._lock = threading.RLock()
        self._texts: list[tuple[str, float]] = []
        self._shown = False
        self._middle = False  # whether other output has begun a line without ending it
        self._said = time.monotonic()
        self._ended = threading.Event()
        self._streams: dict[str, TextIO] = {}
        self._thread = threading.Thread(target=self._draw, name="status line", daemon=True)

    def start(self) -> None:
        """Start drawing; later writes to standard output or standard error clear the line first."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and stream.isatty():
                self._streams[name] = stream
                setattr(sys, name, cast(TextIO, Screen(stream, self)))
        self._thread.start()

    def stop(self) -> None:
        """Stop drawing, and restore standard output and standard error."""
        for name, stream in self._streams.items():
            if isinstance(getattr(sys, name), Screen):  # a command may have replaced the stream
                setattr(sys, name, stream)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._clear()

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a text while the body of the ``with`` statement runs."""
        self._texts.append((text, time.monotonic()))
        try:
            yield
        finally:
            self._texts.pop()
            self._clear()

    @contextlib.contextmanager
    def saying(self, last: str | bytes) -> Iterator[None]:
        """Clear the status line, and allow other output in the body of the ``with`` statement.

        :param last: the last character of this output; until a newline ends its line, nothing is
            drawn.
        """
        with self._lock:
            self._clear()
            yield
            if last:
                self._middle = last not in ("\n", b"\n")
            self._said = time.monotonic()

    def _clear(self) -> None:
        with self._lock:
            if self._shown:
                self._shown = False
                self._write(CLEAR)

    def _write(self, text: str) -> None:
        try:
            self._screen.write(text)
            self._screen.flush()
        except OSError:  # the terminal was closed, which must not stop the command
            self._ended.set()

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._screen.fileno()).columns or WIDTH
        except (OSError, ValueError):
            return WIDTH

    def _draw(self) -> None:
        while not self._ended.wait(PERIOD):
            now = time.monotonic()
            with self._lock:
                texts = self._texts[-1:]
                if texts and not self._middle and (self._shown or now - self._said > SILENCE):
                    text, since = texts[0]
                    plain = "".join(c if c.isprintable() else " " for c in text)
                    tail = f" ... {now - since:.0f} s"
                    self._write(CLEAR + (plain[: max(0, self._width() - len(tail) - 1)] + tail)[
                        : self._width() - 1])
                    self._shown = True


class Screen(io.TextIOBase):
    """Stream on a terminal that clears the status line before each write."""

    def __init__(self, stream: TextIO, line: StatusLine) -> None:
        self._stream, self._line = stream, line
        self.buffer = _Bytes(stream, line)

    def write(self, text: str) -> int:
        """Clear the status line and write text."""
        with self._line.saying(text[-1:]):
            return self._stream.write(text)

    def console(self, byte: int) -> None:
        """Write a byte of the guest's console; see ``SharedOutput.console``."""
        with self._line.saying(bytes((byte,))):
            cast(SharedOutput, self._stream).console(byte)

    def end_line(self) -> None:
        """End an incomplete line of the guest; see ``SharedOutput.end_line``."""
        with self._line.saying("\n"):
            cast(SharedOutput, self._stream).end_line()

    @property
    def stream(self) -> TextIO:
        """The wrapped stream."""
        return self._stream

    def flush(self) -> None:
        """Flush the wrapped stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the wrapped stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return True, since only terminals are wrapped."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the wrapped stream."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Error handler of the wrapped stream."""
        return self._stream.errors


class _Bytes:
    """Binary stream of ``Screen``, which also clears the status line before each write."""

    def __init__(self, stream: TextIO, line: StatusLine) -> None:
        self._stream, self._line = stream, line

    def write(self, data: bytes) -> int:
        with self._line.saying(data[-1:]):
            return self._stream.buffer.write(data)

    def flush(self) -> None:
        self._stream.buffer.flush()
