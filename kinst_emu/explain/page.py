"""Steps as a page: one file, nothing from elsewhere, readable without scripts, which step."""

import html
from collections.abc import Iterable, Iterator, Sequence

from kinst_emu.explain.beside import Beside
from kinst_emu.explain.steps import Step, Table
from kinst_emu.page_file import head

STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --paper: #fff; --line: #767676; --mark: #fff3c4;
  --link: #0b5394; }
@media (prefers-color-scheme: dark) { :root { --text: #ececec; --paper: #16181b; --line: #9a9a9a;
  --mark: #4a3d00; --link: #8ec7ff; } }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper);
  margin: 0 auto; max-width: 75rem; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
a { color: var(--link); }
code, td { font-family: ui-monospace, monospace; font-size: .875rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .15rem 1rem .15rem 0; white-space: nowrap;
  vertical-align: top; }
th { border-bottom: 1px solid var(--line); font-size: .875rem; }
mark { background: var(--mark); color: inherit; font-weight: 600; }
p, h1, h2, h3, li { overflow-wrap: anywhere; }
nav ol { columns: 18rem; padding-left: 1.5rem; }
.keys { position: sticky; top: 0; background: var(--paper); border-bottom: 1px solid var(--line);
  padding: .5rem 0; display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; }
.keys[hidden] { display: none; }
button { font: inherit; color: inherit; background: transparent; border: 1px solid var(--line);
  border-radius: .3rem; padding: .3rem .8rem; min-height: 2.75rem; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
@media (min-width: 110rem) { body { font-size: 1.25rem; max-width: 100rem; } }
.beside { display: grid; gap: 1rem 2rem; grid-template-columns: minmax(0, 1fr); }
.beside h3 { font-size: 1rem; margin: 0; }
@media (min-width: 60rem) {
  .beside { grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); } }
@media print { .keys { display: none; } }
"""

SCRIPT = """
(function () {
  var steps = Array.prototype.slice.call(document.querySelectorAll('main > section'));
  var bar = document.querySelector('.keys'), say = document.getElementById('at'), at = -1;
  function show(n, focus) {
    at = Math.max(-1, Math.min(steps.length - 1, n));
    steps.forEach(function (s, i) { s.hidden = at >= 0 && i !== at; });
    say.textContent = at < 0 ? 'all ' + steps.length + ' steps'
      : 'step ' + (at + 1) + ' of ' + steps.length;
    if (focus && at >= 0) { steps[at].querySelector('h2').focus(); }
  }
  var act = { next: function () { show(at + 1, true); }, previous: function () {
    show(Math.max(0, at - 1), true); }, all: function () { show(-1); } };
  Object.keys(act).forEach(function (name) {
    document.getElementById(name).addEventListener('click', act[name]); });
  document.addEventListener('keydown', function (e) {
    if (e.ctrlKey || e.altKey || e.metaKey) { return; }
    var name = { n: 'next', ArrowRight: 'next', p: 'previous', ArrowLeft: 'previous',
      a: 'all' }[e.key];
    var scrolls = e.target.closest && e.target.closest('.scroll');
    if (name && !(e.key.indexOf('Arrow') === 0 && scrolls)) { act[name](); }
  });
  document.querySelectorAll('nav a').forEach(function (link, i) {
    link.addEventListener('click', function () { if (at >= 0) { show(i, true); } }); });
  bar.hidden = false;
  show(-1);
})();
"""


def page(title: str, about: str, steps: Sequence[Step]) -> str:
    """:param about: a sentence below the title."""
    sections = [(step.name, step.title, _parts(step, step.title)) for step in steps]
    return "\n".join(_lines(title, about, sections)) + "\n"


def page_beside(title: str, about: str, names: Sequence[str], found: Beside) -> str:
    """Steps in columns, one for each architecture."""
    titles = ["; ".join(dict.fromkeys(step.title for step in steps if step is not None))
              for _name, steps in found]

    def content(number: int) -> Iterator[str]:
        yield f'<div class="beside" style="--columns:{len(names)}">'
        for name, step in zip(names, found[number][1], strict=True):
            yield f"<div><h3>{html.escape(name)}</h3>"
            if step is None:
                yield "<p>There is no such step.</p>"
            else:
                yield from _parts(step, f"{name}: {step.title}")
            yield "</div>"
        yield "</div>"

    sections = [(found[n][0], step_title, content(n)) for n, step_title in enumerate(titles)]
    return "\n".join(_lines(title, about, sections)) + "\n"


Section = tuple[str, str, Iterable[str]]  # name, title, content


def _lines(title: str, about: str, sections: Sequence[Section]) -> Iterator[str]:
    esc = html.escape
    yield from head(title, STYLE, scripts=True)
    yield "<body>"
    yield f"<header><h1>{esc(title)}</h1><p>{esc(about)}</p></header>"
    yield '<nav aria-label="Steps"><ol>'
    for name, heading, _content in sections:
        yield f'<li><a href="#{esc(name)}">{esc(heading)}</a></li>'
    yield "</ol></nav>"
    yield ('<nav class="keys" aria-label="Stepping" hidden>'
           '<button id="previous" type="button">Previous (p)</button>'
           '<button id="next" type="button">Next (n)</button>'
           '<button id="all" type="button">All (a)</button>'
           '<span id="at" role="status"></span></nav>')
    yield "<main>"
    for number, (name, heading, content) in enumerate(sections, 1):
        yield (f'<section id="{esc(name)}" aria-labelledby="{esc(name)}-title">'
               f'<h2 id="{esc(name)}-title" tabindex="-1">{number}. {esc(heading)}</h2>')
        yield from content
        yield "</section>"
    yield f"</main><script>{SCRIPT}</script></body></html>"


def _parts(step: Step, title: str) -> Iterator[str]:
    tables = sum(isinstance(part, Table) for part in step.parts)
    number = 0
    for part in step.parts:
        if isinstance(part, Table):
            number += 1
            yield from _table(part, f"{title}, table {number}" if tables > 1 else title)
        else:
            yield f"<p>{html.escape(part)}</p>"


def _table(table: Table, title: str) -> Iterator[str]:
    esc = html.escape
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(title)}"><table>'
    heads = "".join(f'<th scope="col">{esc(head)}</th>' if head else "<td></td>"
                    for head in table.heads)
    yield f"<thead><tr>{heads}</tr></thead><tbody>"
    for number, row in enumerate(table.rows):
        begin, end = ("<mark>", "</mark>") if number in table.marked else ("", "")
        cells = "".join(f"<td>{begin}{esc(cell)}{end}</td>" if cell else "<td></td>"
                        for cell in row)
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
