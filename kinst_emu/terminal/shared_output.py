"""Standard output shared by this program's text and the guest's console.

Neither continues a line that the other has begun, and the guest's text cannot control the user's
terminal.
"""

import codecs
import io
from typing import Any

from emu.host.printable import visible

NEWLINE = 0x0A
EDITING = "\b\a"  # control characters that a console needs while the user types


class SharedOutput(io.TextIOWrapper):
    """Text stream for this program's output; ``console`` adds the guest's output.

    :ivar raw: whether control characters reach a terminal unchanged.
    :ivar changed: whether control characters were replaced.
    """

    raw = changed = False
    # whether the guest's last line is unfinished; whether this program's last line is unfinished
    _guests = _ours = False
    _printed = False  # whether the text layer may hold text that is not yet in the buffer
    given: io.TextIOWrapper | None = None

    def __init__(self, raw: Any, encoding: str, errors: str | None = None,
                 line_buffering: bool = False) -> None:
        super().__init__(raw, encoding=encoding, errors=errors, line_buffering=line_buffering)
        self._terminal = self.isatty()  # cached, because it is checked for each console byte
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def write(self, text: str, /) -> int:
        """Write text of this program, on a new line if the guest's last line is incomplete."""
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
        """Write a byte of the guest's console."""
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
        """Write the bytes of a character that the guest has only partly written."""
        rest = self._shown(self._decoder.decode(b"", True), EDITING)
        if rest:
            self.buffer.write(rest.encode("utf-8", "backslashreplace"))

    def end_line(self) -> None:
        """End the guest's last line if it is incomplete, and flush the stream."""
        if self._guests:
            self.write("\n")
        self.flush()


def shared(output: io.TextIOWrapper) -> SharedOutput:
    """Return a ``SharedOutput`` that writes to the same file as a given stream.

    Nothing may be written to the given stream any more. It stays open, because ``shutil`` and
    Textual query ``sys.__stdout__`` for the terminal's size.
    """
    output.flush()
    made = SharedOutput(output.buffer, encoding=output.encoding, errors=output.errors,
                        line_buffering=output.line_buffering)
    made.given = output  # keep it alive: its finalizer closes the shared buffer
    return made
