"""Standard output, which our rows and the guest's console share: neither goes on in a line that the
other has begun."""

import io

NEWLINE = 0x0A


class SharedOutput(io.TextIOWrapper):
    """What is printed is ours, ``console`` is the guest's."""

    _guests = _ours = False  # whether a line was begun by the guest, by us
    _printed = False  # whether the layer of bytes below is behind
    given: io.TextIOWrapper | None = None

    def write(self, text: str, /) -> int:
        if not text:
            return 0
        if self._guests:
            self._guests = False
            if not text.startswith("\n"):
                super().write("\n")
        self._ours, self._printed = not text.endswith("\n"), True
        return super().write(text)

    def console(self, byte: int) -> None:
        """The guest has written to its console."""
        if self._printed:
            self._printed = False
            self.flush()
        if self._ours:
            self._ours = False
            self.buffer.write(b"\n")
        self.buffer.write(bytes((byte,)))
        self._guests = byte != NEWLINE
        if byte == NEWLINE or self.isatty():
            self.buffer.flush()

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
