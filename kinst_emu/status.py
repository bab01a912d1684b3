"""The status line: what is being done, shown on a terminal where nothing is said for a while."""

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO, cast

SILENCE, PERIOD = 0.7, 0.2  # seconds
CLEAR = "\r\x1b[K"


class StatusLine:
    """:param screen: the terminal it is drawn on."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._lock = threading.RLock()
        self._texts: list[tuple[str, float]] = []
        self._shown = False
        self._said = time.monotonic()
        self._ended = threading.Event()
        self._streams: dict[str, TextIO] = {}
        self._thread = threading.Thread(target=self._draw, name="status line", daemon=True)

    def start(self) -> None:
        """Draw from now on; what goes to a terminal makes room for the line."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and stream.isatty():
                self._streams[name] = stream
                setattr(sys, name, cast(TextIO, _Screen(stream, self)))
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with self.saying():
            pass
        for name, stream in self._streams.items():
            setattr(sys, name, stream)

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        self._texts.append((text, time.monotonic()))
        try:
            yield
        finally:
            self._texts.pop()
            with self.saying():
                pass

    @contextlib.contextmanager
    def saying(self) -> Iterator[None]:
        """Something else is written meanwhile."""
        with self._lock:
            if self._shown:
                self._shown = False
                self._screen.write(CLEAR)
                self._screen.flush()
            yield
            self._said = time.monotonic()

    def _draw(self) -> None:
        while not self._ended.wait(PERIOD):
            now = time.monotonic()
            with self._lock:
                texts = self._texts[-1:]
                if texts and (self._shown or now - self._said > SILENCE):
                    text, since = texts[0]
                    self._screen.write(f"{CLEAR}{text[:70]} ... {now - since:.0f} s")
                    self._screen.flush()
                    self._shown = True


class _Screen(io.TextIOBase):
    """A terminal that makes room before anything is written to it."""

    def __init__(self, stream: TextIO, line: StatusLine) -> None:
        self._stream, self._line = stream, line
        self.buffer = _Bytes(stream, line)

    def write(self, text: str) -> int:
        with self._line.saying():
            return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors


class _Bytes:
    """The same for bytes."""

    def __init__(self, stream: TextIO, line: StatusLine) -> None:
        self._stream, self._line = stream, line

    def write(self, data: bytes) -> int:
        with self._line.saying():
            return self._stream.buffer.write(data)

    def flush(self) -> None:
        self._stream.buffer.flush()
