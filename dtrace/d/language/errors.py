"""What is wrong with a D program, as dtrace(1) says it."""

from dataclasses import dataclass

from emu.host.errors import KinstError


@dataclass(frozen=True)
class SourcePlace:
    """Where something stands in a program; lines and columns are counted from 1."""

    line: int
    column: int = 0


class DError(KinstError):
    """:param tag: the error tag (``D_SYNTAX`` and so on), which ``-x errtags`` shows.
    """

    def __init__(self, tag: str, text: str, place: SourcePlace) -> None:
        super().__init__(text)
        self.tag, self.text, self.place = tag, text, place

    def said(self, tags: bool = False) -> str:
        """The message with its line, and with its tag where it is wanted."""
        if not self.tag:  # no mistake of the language
            return self.text
        tag = f"[{self.tag}] " if tags else ""
        return f"{tag}line {self.place.line}: {self.text}"
