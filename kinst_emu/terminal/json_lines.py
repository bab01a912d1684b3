"""One JSON object a line: what a trace gives, and what the guest writes to its console."""

import json
import sys
from collections.abc import Mapping
from typing import IO


class JsonLines:
    """:param out: None: standard output, as it is then."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out
        self._line = bytearray()

    def row(self, row: Mapping[str, object]) -> None:
        """An object; a line of the console that was begun comes first."""
        self.end_line()
        self._print(row)

    def byte(self, byte: int) -> None:
        """The guest has written to its console."""
        if byte == ord("\n"):
            self._console()
        elif byte != ord("\r"):
            self._line.append(byte)

    def end_line(self) -> None:
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
