"""Explanations as plain text."""

from collections.abc import Iterator, Sequence

from kinst_emu.explain.steps.beside import Beside
from kinst_emu.explain.steps.step import Step, Table

# maximum paragraph width in columns, for one explanation and for explanations side by side
WIDTH, NARROW = 100, 64
MARK = "*"  # mark before each table row that the text mentions


def text(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the lines of an explanation."""
    yield f"({MARK} marks the rows that a step is about.)"
    yield ""
    for number, step in enumerate(steps, 1):
        yield f"{number}. {step.title}"
        yield ""
        yield from _parts(step, WIDTH)


def text_beside(names: Sequence[str], found: Beside) -> Iterator[str]:
    """Yield lines that show several explanations side by side, one column per architecture."""
    columns = [[list(_column(step)) for _name, steps in found for step in [steps[at]]]
               for at in range(len(names))]
    widths = [max(len(line) for lines in column for line in lines) for column in columns]
    yield _beside(names, widths)
    for number in range(len(found)):
        lines = [column[number] for column in columns]
        yield _beside(["-" * width for width in widths], widths)
        for at in range(max(map(len, lines))):
            yield _beside([one[at] if at < len(one) else "" for one in lines], widths)


def _beside(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " | ".join(cell.ljust(width)
                      for cell, width in zip(cells, widths, strict=True)).rstrip()


def _column(step: Step | None) -> Iterator[str]:
    if step is None:
        yield "(no such step)"
        return
    yield step.title
    yield ""
    yield from _parts(step, NARROW)


def _parts(step: Step, width: int) -> Iterator[str]:
    for part in step.parts:
        yield from _table(part) if isinstance(part, Table) else _wrapped(part, width)
        yield ""


def _wrapped(paragraph: str, width: int) -> Iterator[str]:
    line = ""
    for word in paragraph.split(" "):
        if line and len(line) + 1 + len(word) > width - 4:
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
