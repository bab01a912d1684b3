"""Standard output, which our rows and the guest's console share: neither goes on in a line that the
other has begun.  What a guest says does not control the user's terminal."""

import codecs
import io
from typing import Any

from emu.host.printable import visible

NEWLINE = 0x0A
EDITING = "\b\a"  # of what controls a terminal, what a guest's console says while one types


class SharedOutput(io.TextIOWrapper):
    """What is printed is ours, ``console`` is the guest's.

    :ivar raw: whether a terminal is given what would control it.
    :ivar changed: whether a terminal was given something else.
    """

    raw = changed = False
    _guests = _ours = False  # whether a line was begun by the guest, by us
    _printed = False  # whether the layer of bytes below is behind
    given: io.TextIOWrapper | None = None

    def __init__(self, raw: Any, encoding: str, errors: str | None = None,
                 line_buffering: bool = False) -> None:
        super().__init__(raw, encoding=encoding, errors=errors, line_buffering=line_buffering)
        self._terminal = self.isatty()  # asked for each byte of a console
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def write(self, text: str, /) -> int:
        if not text:
            return 0
        if self._guests:
            self._rest()
            self._guests = False
            if not text.startswith("\n"):
                super().write("\n")
        self._ours, self._printed = not text.endswith("\n"), True
        return super().write(self._shown(text))

    def _shown(self, text: str, also: str = "") -> str:
        if self.raw or not self._terminal:
            return text
        shown = visible(text, also)
        self.changed = self.changed or shown != text
        return shown

    def console(self, byte: int) -> None:
        """The guest has written to its console."""
        if self._printed:
            self._printed = False
            self.flush()
        if self._ours:
            self._ours = False
            self.buffer.write(b"\n")
        data = bytes((byte,))
        if not self.raw and self._terminal:
            data = self._shown(self._decoder.decode(data), EDITING).encode("utf-8")
        self.buffer.write(data)
        self._guests = byte != NEWLINE
        if byte == NEWLINE or self._terminal:
            self.buffer.flush()

    def _rest(self) -> None:
        """The beginning of a character that the guest has not gone on with."""
        rest = self._shown(self._decoder.decode(b"", True), EDITING)
        if rest:
            self.buffer.write(rest.encode("utf-8", "backslashreplace"))

    def end_line(self) -> None:
        """End a line that the guest has begun: something else than this output comes next."""
        if self._guests:
            self.write("\n")
        self.flush()


def shared(output: io.TextIOWrapper) -> SharedOutput:
    """The same file as a ``SharedOutput``.  Nothing more is to be written to what was given; but it
    stays open: ``sys.__stdout__`` is asked for the terminal's size (``shutil``, Textual)."""
    output.flush()
    made = SharedOutput(output.buffer, encoding=output.encoding, errors=output.errors,
                        line_buffering=output.line_buffering)
    made.given = output  # which closes the layer of bytes when it goes
    return made
