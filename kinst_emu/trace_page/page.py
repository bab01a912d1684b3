"""A trace as one page: nothing from elsewhere, readable without scripts."""

import html
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dtrace.run.structured import Row
from emu.progress import PROGRESS
from kinst.breakpoints import Breakpoints
from kinst_emu.page_file import head, write_page
from kinst_emu.trace_page.collected import MAX_STACKS, Code, Collected

COLUMNS, FEWEST, ROWS = 160, 8, 24  # of the timeline
CELL, HIGH, NAMES = 6, 18, 220  # pixels
WIDTH, FRAME, NARROWEST, MOST_FRAMES = 1200, 18, 0.6, 1_500  # of the flame graph
LETTER = 6.7
HEATS = 9
MOST_BARS, MOST_DISTRIBUTIONS = 40, 8  # of an aggregation
MOST_AGGREGATIONS = 40
FIRST = 500  # firings that are listed
LABEL = 120  # characters
TEXT = '<th scope="col">its text</th>'

STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --paper: #fff; --line: #767676;
  --link: #0b5394; --heat: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --text: #ececec; --paper: #16181b; --line: #9a9a9a;
  --link: #8ec7ff; --heat: #fb923c; } }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper);
  margin: 0 auto; max-width: 90rem; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
p, h1, h2, h3, li, summary { overflow-wrap: anywhere; }
a { color: var(--link); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .1rem 1rem .1rem 0; white-space: nowrap; }
td { font: .875rem ui-monospace, monospace; }
td.n, th.n { text-align: right; }
th { border-bottom: 1px solid var(--line); font-size: .875rem; }
td.n i { font-style: normal; padding: 0 .3rem; border-left: .5rem solid transparent; }
summary { cursor: pointer; min-height: 2.75rem; padding: .6rem 0; }
.bar { display: inline-block; height: .8rem; background: var(--heat); vertical-align: middle; }
.wide { width: 22rem; }
input { font: inherit; color: inherit; background: transparent; border: 1px solid var(--line);
  border-radius: .3rem; padding: .5rem; width: 100%; max-width: 30rem; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
svg text { font: 11px ui-monospace, monospace; fill: var(--text); }
svg .f text { fill: #1a1a1a; pointer-events: none; }
svg .f rect { stroke: #fff; stroke-width: .5; }
.cells path { fill: var(--heat); }
.search[hidden] { display: none; }
""" + "".join(f".h{n} i {{ border-left-color: color-mix(in srgb, var(--heat) "
              f"{20 + 80 * n // HEATS}%, transparent); }}\n" for n in range(1, HEATS + 1))
SCRIPT = """
(function () {
  var box = document.getElementById('search'), said = document.getElementById('found');
  var parts = Array.prototype.slice.call(document.querySelectorAll('details.code'));
  document.querySelector('.search').hidden = false;
  box.addEventListener('input', function () {
    var word = box.value.trim().toLowerCase(), functions = 0, rows = 0;
    parts.forEach(function (part) {
      var own = word && part.dataset.name.toLowerCase().indexOf(word) >= 0, hits = 0;
      Array.prototype.forEach.call(part.querySelectorAll('tbody tr'), function (row) {
        var hit = !word || own || row.textContent.toLowerCase().indexOf(word) >= 0;
        row.hidden = !hit;
        hits += hit;
      });
      part.hidden = !hits;
      part.open = !!word && !own && hits > 0;
      functions += hits > 0;
      rows += hits;
    });
    said.textContent = word ? functions + ' functions, ' + rows + ' instructions' : '';
  });
})();
"""


def page(trace: Collected) -> str:
    return "\n".join(_lines(trace)) + "\n"


def write(path: Path, trace: Collected, breakpoints: Breakpoints) -> None:
    """Make the page of a trace that has ended.

    :raises OSError: when it cannot be written.
    """
    with PROGRESS.working("writing the page"):
        trace.finish(breakpoints)
        content = page(trace)
    write_page(path, content, "dtrace")


def _lines(trace: Collected) -> Iterator[str]:
    esc = html.escape
    title = f"{trace.total} firings in {trace.kernel}"
    yield from head(title, STYLE, scripts=True)
    yield "<body>"
    yield f"<header><h1>{esc(title)}</h1><p>{esc(_about(trace))}</p></header>"
    sections = [("timeline", "Timeline", _timeline(trace)),
                ("aggregations", "Aggregations", _aggregations(trace.aggregations)),
                ("stacks", "Stacks", _flames(trace)),
                ("code", "Code", _code(trace)),
                ("firings", "The first firings", _firings(trace))]
    shown = [(name, heading, lines) for name, heading, made in sections if (lines := list(made))]
    yield '<nav aria-label="Parts"><ul>'
    for name, heading, _content in shown:
        yield f'<li><a href="#{name}">{heading}</a></li>'
    yield "</ul></nav><main>"
    for name, heading, content in shown:
        yield f'<section aria-labelledby="{name}"><h2 id="{name}">{heading}</h2>'
        yield from content
        yield "</section>"
    yield f"</main><script>{SCRIPT if trace.code else ''}</script></body></html>"


def _about(trace: Collected) -> str:
    text = f"{trace.workload}; {trace.fired} probes have fired"
    if trace.times:
        text += f", from {trace.times[0]} to {trace.times[-1]} virtual nanoseconds"
    if len(trace.times) < trace.total:
        text += f"; the times of the first {len(trace.times)} are shown"
    return f"{text}."


def _heat(count: int, most: int) -> int:
    """1 to HEATS, by the logarithm."""
    return 0 if not count else 1 + round((HEATS - 1) * math.log(count) / math.log(max(most, 2)))


# -- the timeline -------------------------------------------------------------------


def _timeline(trace: Collected) -> Iterator[str]:
    if not trace.times:
        return
    first, last = min(trace.times), max(trace.times)
    span = max(1, last - first + 1)
    columns = max(FEWEST, min(COLUMNS, len(trace.times) // 4))
    totals = Counter[str]()
    cells: dict[str, Counter[int]] = {}
    for time, probe in zip(trace.times, trace.probes, strict=True):
        name = trace.functions[probe]
        totals[name] += 1
        cells.setdefault(name, Counter())[(time - first) * columns // span] += 1
    names = [name for name, _count in totals.most_common(ROWS)]
    cell = CELL * COLUMNS / columns
    most = max(max(found.values()) for found in cells.values())
    height = HIGH * len(names) + 24
    label = (f"Firings of {len(names)} functions over {span} virtual nanoseconds, in {columns} "
             "columns; "
             "the counts are in the tables below.")
    if len(totals) > len(names):
        yield f"<p>The {len(names)} functions with the most firings, of {len(totals)}.</p>"
    yield ('<div class="scroll" role="group" tabindex="0" aria-label="Timeline">'
           f'<svg role="img" aria-label="{html.escape(label)}" width="{NAMES + CELL * COLUMNS}" '
           f'height="{height}" viewBox="0 0 {NAMES + CELL * COLUMNS} {height}">')
    for row, name in enumerate(names):
        y = row * HIGH
        shown = name if len(name) <= NAMES // 7 else name[: NAMES // 7 - 2] + ".."
        yield f'<text x="0" y="{y + 13}">{html.escape(shown)}</text><g class="cells">'
        by_heat: dict[int, list[str]] = {}
        for column, count in sorted(cells[name].items()):
            by_heat.setdefault(_heat(count, most), []).append(
                f"M{NAMES + cell * column:g} {y + 1}h{cell:g}v{HIGH - 3}h-{cell:g}z")
        for heat, paths in by_heat.items():
            yield f'<path opacity="{heat / HEATS:.2f}" d="{"".join(paths)}"/>'
        yield "</g>"
    for part in range(5):
        x = NAMES + CELL * COLUMNS * part // 4
        anchor = "end" if part == 4 else "start" if part == 0 else "middle"
        yield (f'<text x="{x}" y="{height - 6}" text-anchor="{anchor}">'
               f"{first + span * part // 4}</text>")
    yield "</svg></div>"


def _firings(trace: Collected) -> Iterator[str]:
    if not trace.times:
        return
    yield ('<details><summary>in their order</summary><div class="scroll" role="group" '
           'tabindex="0" aria-label="The first firings"><table><thead><tr>'
           '<th scope="col" class="n">virtual ns</th>'
           '<th scope="col">probe</th></tr></thead>'
           "<tbody>")
    for time, probe in zip(trace.times[:FIRST], trace.probes[:FIRST], strict=True):
        yield f'<tr><td class="n">{time}</td><td>{html.escape(trace.names[probe])}</td></tr>'
    yield "</tbody></table></div></details>"


# -- code ---------------------------------------------------------------------------


def _code(trace: Collected) -> Iterator[str]:
    if not trace.code:
        return
    most = max((line.count or 0 for code in trace.code for line in code.lines), default=1)
    yield ('<p class="search" hidden><label for="search">Search functions, instructions, sources'
           '</label><br><input id="search" type="search" autocomplete="off"> '
           '<span id="found" role="status"></span></p>')
    for number, code in enumerate(trace.code):
        yield from _function(code, most, number == 0)
    if trace.left_out:
        yield f"<p>{trace.left_out} more functions had firings; their code is not shown.</p>"


def _function(code: Code, most: int, is_open: bool) -> Iterator[str]:
    esc = html.escape
    name = f"{code.module}`{code.name}"
    texts = any(line.line for line in code.lines)
    yield (f'<details class="code" data-name="{esc(name)}"{" open" * is_open}>'
           f"<summary>{esc(name)}: {code.count}</summary>"
           f'<div class="scroll" role="group" tabindex="0" aria-label="{esc(name)}"><table><thead>'
           '<tr><th scope="col" class="n">firings</th><th scope="col" class="n">offset</th>'
           '<th scope="col">instruction</th><th scope="col">verdict</th>'
           f'<th scope="col">source</th>{TEXT if texts else ""}</tr></thead><tbody>')
    last = ""
    for line in code.lines:
        count = "" if line.count is None else str(line.count)
        source, text = ("", "") if line.source == last else (line.source, line.line)
        last = line.source
        yield (f'<tr class="h{_heat(line.count or 0, most)}"><td class="n"><i>{count}</i></td>'
               f'<td class="n">{line.offset}</td><td>{esc(line.text)}</td>'
               f"<td>{esc(line.verdict)}</td><td>{esc(source)}</td>"
               + (f"<td>{esc(text)}</td></tr>" if texts else "</tr>"))
    yield "</tbody></table></div></details>"


# -- aggregations -------------------------------------------------------------------


def _aggregations(rows: Sequence[Row]) -> Iterator[str]:
    for aggregation in rows[:MOST_AGGREGATIONS]:
        name = html.escape(f"{aggregation['aggregation']} = {aggregation['function']}()")
        given = aggregation["rows"]
        entries = [row for row in given if isinstance(row, dict)] if isinstance(
            given, list) else []
        yield f"<h3>{name}</h3>"
        distributions = any(isinstance(row["value"], list) for row in entries)
        most = MOST_DISTRIBUTIONS if distributions else MOST_BARS
        if distributions:
            for row in entries[-most:]:
                value = row["value"]
                buckets = [one for one in value if isinstance(one, dict)] if isinstance(
                    value, list) else []
                yield f"<p>{html.escape(_label(row['keys']))}</p>"
                yield from _bars(name, [(_bound(one["from"]), one["count"]) for one in buckets])
        else:
            yield from _bars(name, [(_label(row["keys"]), row["value"])
                                    for row in sorted(entries, key=_size)[:most]])
        if len(entries) > most:
            which = "last" if distributions else "largest"
            yield f"<p>The {most} {which} of {len(entries)}.</p>"
    if len(rows) > MOST_AGGREGATIONS:
        yield f"<p>The first {MOST_AGGREGATIONS} of {len(rows)} aggregations.</p>"


def _size(row: Row) -> float:
    """Orders rows, the largest first."""
    value = row["value"]
    return -float(value) if isinstance(value, int) else 0.0


def _bound(value: object) -> str:
    return "below" if value is None else str(value)


def _bars(name: str, bars: Sequence[tuple[str, object]]) -> Iterator[str]:
    numbers = [abs(value) for _label, value in bars if isinstance(value, int)]
    most = max(numbers, default=0) or 1
    yield (f'<div class="scroll" role="group" tabindex="0" aria-label="{name}"><table><thead><tr>'
           '<th scope="col">key</th><th scope="col" class="n">value</th>'
           '<th scope="col" class="wide">picture</th></tr></thead><tbody>')
    for label, value in bars:
        shown = value if isinstance(value, int) else json.dumps(value)
        width = 100 * abs(value) / most if isinstance(value, int) else 0
        yield (f'<tr><td>{html.escape(label)}</td><td class="n">{html.escape(str(shown))}</td>'
               f'<td class="wide"><span class="bar" style="width:{width:.1f}%"></span></td></tr>')
    yield "</tbody></table></div>"


def _label(keys: object) -> str:
    parts = keys if isinstance(keys, list) else [keys]
    text = ", ".join(" < ".join(map(str, part)) if isinstance(part, list) else str(part)
                     for part in parts)
    text = "".join(c if c.isprintable() else "?" for c in text) or "all"
    return text if len(text) <= LABEL else text[: LABEL - 3] + "..."


# -- stacks -------------------------------------------------------------------------


class _Frame:
    """A node of the tree of stacks."""

    def __init__(self) -> None:
        self.count = 0
        self.below: dict[str, _Frame] = {}


def _flames(trace: Collected) -> Iterator[str]:
    for name, stacks in trace.stacks.items():
        yield f"<h3>{html.escape(name)}</h3>"
        yield from _flame(name, stacks)
    if trace.stacks_left_out:
        yield (f"<p>{trace.stacks_left_out} stacks are not in it: there were more than "
               f"{MAX_STACKS} different ones.</p>")


def _flame(title: str, stacks: Counter[tuple[str, ...]]) -> Iterator[str]:
    """Widths are shares of the firings; the outermost frames are at the bottom."""
    top = _Frame()
    for frames, count in stacks.items():
        top.count += count
        node = top
        for name in frames:
            node = node.below.setdefault(name, _Frame())
            node.count += count
    rows = list(_frames(top))
    levels = max(level for _name, level, _x, _width, _count in rows) + 1
    height = levels * FRAME
    label = html.escape(f"{title}: a flame graph of {top.count} stacks, {levels} frames high")
    yield ('<div class="scroll" role="group" tabindex="0" aria-label="Stacks">'
           f'<svg role="img" aria-label="{label}" width="{WIDTH}" height="{height}" '
           f'viewBox="0 0 {WIDTH} {height}">')
    for name, level, x, width, count in rows:
        y = height - (level + 1) * FRAME
        room = int((width - 4) / LETTER)
        text = "" if room < 3 else name if len(name) <= room else name[: room - 2] + ".."
        esc = html.escape
        hue = 20 + sum(name.encode()) % 35
        yield (f'<g class="f"><title>{esc(name)}: {count}</title><rect x="{x:.1f}" y="{y}" '
               f'width="{width:.1f}" height="{FRAME - 1}" fill="hsl({hue} 90% 65%)"/>'
               + (f'<text x="{x + 2:.1f}" y="{y + 12}">{esc(text)}</text>' if text else "")
               + "</g>")
    yield "</svg></div>"
    if len(rows) == MOST_FRAMES:
        yield f"<p>The {MOST_FRAMES} frames nearest to the bottom.</p>"


def _frames(top: _Frame) -> Iterator[tuple[str, int, float, float, int]]:
    """(name, level, x, width, count), the widest of each level first."""
    waiting, drawn = [("all", top, 0, 0.0)], 0
    while waiting and drawn < MOST_FRAMES:
        name, node, level, x = waiting.pop(0)
        width = WIDTH * node.count / top.count
        drawn += 1
        yield name, level, x, width, node.count
        for below, found in sorted(node.below.items(), key=lambda one: (-one[1].count, one[0])):
            wide = WIDTH * found.count / top.count
            if wide >= NARROWEST:
                waiting.append((below, found, level + 1, x))
            x += wide
