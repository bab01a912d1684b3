"""JSON lines: one object for each record of a trace and each line of the guest's console."""

import json
import sys
from collections.abc import Mapping
from typing import IO


class JsonLines:
    """Writer of JSON lines.

    :param out: the output; None: ``sys.stdout`` at the time of each write.
    """

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out
        self._line = bytearray()

    def row(self, row: Mapping[str, object]) -> None:
        """End an incomplete line of the console, then write an object."""
        self.end_line()
        self._print(row)

    def byte(self, byte: int) -> None:
        """Process a byte of the guest's console; write the line when it is complete."""
        if byte == ord("\n"):
            self._console()
        elif byte != ord("\r"):
            self._line.append(byte)

    def end_line(self) -> None:
        """Write the current line of the console, even if it is incomplete."""
        if self._line:
            self._console()

    def _console(self) -> None:
        line = self._line.decode("utf-8", "replace")
        self._line.clear()
        self._print({"console": line})

    def _print(self, row: Mapping[str, object]) -> None:
        out = sys.stdout if self._out is None else self._out
        out.write(json.dumps(row, allow_nan=False) + "\n")
        if out.isatty():
            out.flush()
