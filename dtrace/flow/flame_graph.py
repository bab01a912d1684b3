"""A flame graph (Brendan Gregg) of call trees, in instructions: one SVG file that needs nothing
else.  A frame's width is its share of the instructions; a click makes a frame as wide as the page.
"""

import zlib
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape, quoteattr

from dtrace.flow.call_lines import thread_name
from dtrace.flow.call_tree import Node, by_total

WIDTH, ROW, TOP, LETTER = 1200, 17, 40, 6.6  # pixels
NARROWEST = 0.4  # pixels: what is narrower is not drawn
MAX_DEPTH = 400
STYLE = """text{font:11px monospace;pointer-events:none}rect{stroke:#fff;stroke-width:.4}
g:hover>rect{stroke:#000}.t{font-size:14px}svg{background:#fff}"""
# Zooming: what lies in the clicked frame's columns is spread over the page; "Escape" or the lowest
# row goes back.
SCRIPT = """
const gs=[...document.querySelectorAll('g[data-x]')],W=%d,L=%f;
function zoom(x,w){for(const g of gs){const a=+g.dataset.x,b=+g.dataset.w,
 l=Math.max(0,(a-x)/w*W),r=Math.min(W,(a+b-x)/w*W);
 g.style.display=r-l>.4?'':'none';const q=g.querySelector('rect'),t=g.querySelector('text');
 q.setAttribute('x',l);q.setAttribute('width',Math.max(0,r-l));
 t.setAttribute('x',l+3);const n=Math.floor((r-l-6)/L),s=g.dataset.n;
 t.textContent=n<3?'':s.length>n?s.slice(0,n-2)+'..':s}}
for(const g of gs)g.addEventListener('click',()=>zoom(+g.dataset.x,+g.dataset.w));
addEventListener('keydown',e=>{if(e.key==='Escape')zoom(0,W)});
"""


def svg(trees: Mapping[int, Node], names: Mapping[int, str], title: str) -> Iterator[str]:
    """The graph, piece by piece."""
    whole = sum(top.total for top in trees.values())
    rows = list(_rows(trees, names, whole))
    depth = max((row[1] for row in rows), default=0)
    height = TOP + (depth + 2) * ROW
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           f'width="{WIDTH}" height="{height}" role="img" aria-label={quoteattr(title)}>'
           f"<style>{STYLE}</style>"
           f'<text class="t" x="8" y="20">{escape(title)}</text>\n')
    for name, level, left, width, count, calls in rows:
        y = height - (level + 1) * ROW - 4
        share = 100 * count / whole if whole else 0
        room = int((width - 6) / LETTER)
        text = "" if room < 3 else name if len(name) <= room else name[: room - 2] + ".."
        yield (f'<g data-x="{left:.2f}" data-w="{width:.2f}" data-n={quoteattr(name)}>'
               f"<title>{escape(name)}: {count} instructions ({share:.2f}%), {calls} calls</title>"
               f'<rect x="{left:.2f}" y="{y}" width="{width:.2f}" height="{ROW - 1}" '
               f'fill="{_colour(name)}"/>'
               f'<text x="{left + 3:.2f}" y="{y + 12}">{escape(text)}</text></g>\n')
    yield f"<script><![CDATA[{SCRIPT % (WIDTH, LETTER)}]]></script></svg>\n"


def _rows(trees: Mapping[int, Node], names: Mapping[int, str],
          whole: int) -> Iterator[tuple[str, int, float, float, int, int]]:
    """(name, level, left, width, instructions, calls) of what is drawn."""
    if not whole:
        return
    scale = WIDTH / whole
    yield "all", 0, 0.0, float(WIDTH), whole, 1
    left = 0.0
    for thread, top in sorted(trees.items(), key=lambda t: -t[1].total):
        label = f"thread {thread_name(thread, names)}"
        waiting = [(top, label, 1, left)]
        left += top.total * scale
        while waiting:
            node, name, level, x = waiting.pop()
            width = node.total * scale
            if width < NARROWEST or level > MAX_DEPTH:
                continue
            yield name, level, x, width, node.total, max(node.calls, 1)
            for below in by_total(node):
                waiting.append((below, below.name, level + 1, x))
                x += below.total * scale


def _colour(name: str) -> str:
    """Warm, and the same for a name everywhere."""
    seed = zlib.crc32(name.encode())
    return f"rgb({205 + seed % 50},{80 + (seed >> 8) % 130},{(seed >> 16) % 60})"
