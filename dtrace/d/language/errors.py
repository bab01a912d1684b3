"""Errors in D programs, worded as in dtrace(1)."""

from typing import NamedTuple

from emu.host.errors import KinstError


class SourcePlace(NamedTuple):
    """Position in a D program; lines and columns are counted from 1."""

    line: int
    column: int = 0


class DError(KinstError):
    """Error in a D program.

    :param tag: error tag, such as ``D_SYNTAX``, which ``-x errtags`` shows.
    """

    def __init__(self, tag: str, text: str, place: SourcePlace) -> None:
        super().__init__(text)
        self.tag, self.text, self.place = tag, text, place

    def said(self, tags: bool = False) -> str:
        """Return the message with its line number and, if requested, its error tag."""
        if not self.tag:  # an error from the code generator, which does not know the line
            return self.text
        tag = f"[{self.tag}] " if tags else ""
        return f"{tag}line {self.place.line}: {self.text}"
