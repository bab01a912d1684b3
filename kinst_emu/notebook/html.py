"""HTML output of a session in a notebook; all text is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from dtrace.run.values import Value

MOST_ROWS = 200
BAR = 20  # length of the longest bar in characters


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], marked: int | None = None) -> str:
    """Return an HTML table of the first rows, with the number of omitted rows below it.

    :param heads: column headings.
    :param marked: index of the row to print in bold.
    """
    kept, more = list[str](), 0
    for number, row in enumerate(rows):
        if number >= MOST_ROWS:
            more += 1
            continue
        weight = ' style="font-weight:bold"' if number == marked else ""
        kept.append(f"<tr{weight}>{_cells([escape(str(cell)) for cell in row])}</tr>")
    return _table(heads, kept) + (f"<p>and {more} more</p>" if more else "")


def rows(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return an HTML table whose cells are HTML."""
    return _table(heads, [f"<tr>{_cells(row)}</tr>" for row in cells])


def _cells(cells: Iterable[str]) -> str:
    return "".join(f'<td style="text-align:left;white-space:pre-wrap">{cell}</td>'
                   for cell in cells)


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def text(lines: Iterable[str]) -> str:
    """Return preformatted lines as HTML."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def aggregation(name: str, values: Mapping[tuple[Value, ...], Value]) -> str:
    """Return a table of an aggregation's keys and values, with distributions drawn as bars."""
    rows, keys = list[tuple[str, ...]](), max((len(key) for key in values), default=0)
    for key, value in values.items():
        first = (*map(_shown, key), *[""] * (keys - len(key)))
        if isinstance(value, list):
            rows += [(*(first if not number else [""] * keys), low, bar, count)
                     for number, (low, bar, count) in enumerate(_buckets(value))]
        else:
            rows.append((*first, _shown(value)))
    columns = max((len(row) for row in rows), default=keys + 1) - keys
    rows = [row if len(row) == keys + columns else (*row[:keys], "", "", row[-1]) for row in rows]
    heads = [*(["key"] if keys == 1 else [f"key {n + 1}" for n in range(keys)]),
             *(["from", "", "count"] if columns == 3 else ["value"])]
    return f"<p><b>{escape(name)}</b></p>" + table(heads, rows)


def framed(page: str, title: str, height: int) -> str:
    """Return an iframe that contains a page; scripts of the page cannot access the notebook.

    :param height: height of the frame in pixels.
    """
    return (f'<iframe title="{escape(title)}" sandbox="allow-scripts" allow="fullscreen *" '
            f'srcdoc="{escape(page)}" '
            f'style="width:100%;height:{height}px;border:1px solid #767676"></iframe>')


def _buckets(value: Sequence[Value]) -> list[tuple[str, str, str]]:
    rows = [row for row in value if isinstance(row, dict)]
    counts = [int(str(row["count"])) for row in rows]
    most = max(counts, default=0)
    return [(_shown(row.get("from", "below")),
             "█" * max(1, round(BAR * count / most)) if count > 0 else "", str(count))
            for row, count in zip(rows, counts, strict=True)]


def _shown(value: Value) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
