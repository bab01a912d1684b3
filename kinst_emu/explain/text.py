"""Steps as plain text."""

from collections.abc import Iterator, Sequence

from kinst_emu.explain.steps import Step, Table

WIDTH = 100
MARK = "*"  # before the rows that the text is about


def text(steps: Sequence[Step]) -> Iterator[str]:
    """The lines of all steps."""
    for number, step in enumerate(steps, 1):
        yield f"{number}. {step.title}"
        yield ""
        for part in step.parts:
            yield from _table(part) if isinstance(part, Table) else _wrapped(part)
            yield ""


def _wrapped(paragraph: str) -> Iterator[str]:
    line = ""
    for word in paragraph.split(" "):
        if line and len(line) + 1 + len(word) > WIDTH - 4:
            yield f"    {line}"
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield f"    {line}"


def _table(table: Table) -> Iterator[str]:
    rows = [table.heads, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.heads))]
    for number, row in enumerate(rows, -1):
        mark = MARK if number in table.marked else " "
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {mark} {cells}".rstrip()
