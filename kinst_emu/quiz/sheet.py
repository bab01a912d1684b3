"""A sheet of questions for a class, and the answers behind them, as a page."""

import html
from collections.abc import Iterator, Sequence

from kinst_emu.page_file import head
from kinst_emu.quiz.questions import Question

STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --paper: #fff; --line: #767676; }
@media (prefers-color-scheme: dark) { :root { --text: #ececec; --paper: #16181b;
  --line: #9a9a9a; } }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper);
  margin: 0 auto; max-width: 60rem; padding: 1rem; }
li { margin: 0 0 1.5rem; break-inside: avoid; }
code { font: .875rem ui-monospace, monospace; overflow-wrap: anywhere; }
.line { border-bottom: 1px solid var(--line); height: 2.5rem; max-width: 30rem; }
.answers { margin-top: 3rem; border-top: 2px solid var(--line); }
@media print { .answers { break-before: page; border: 0; } }
"""


def sheet(title: str, about: str, questions: Sequence[Question]) -> str:
    """:param about: a sentence below the title."""
    return "\n".join(_lines(title, about, questions)) + "\n"


def _lines(title: str, about: str, questions: Sequence[Question]) -> Iterator[str]:
    esc = html.escape
    yield from head(title, STYLE, scripts=False)
    yield "<body><main>"
    yield f"<h1>{esc(title)}</h1><p>{esc(about)}</p><h2>Questions</h2><ol>"
    for question in questions:
        yield "<li>"
        for line in question.text[:-1]:
            yield f"<p><code>{esc(line)}</code></p>"
        yield f'<p>{esc(question.text[-1])}</p><div class="line"></div></li>'
    yield '</ol><section class="answers" aria-labelledby="answers">'
    yield '<h2 id="answers">Answers</h2><ol>'
    for question in questions:
        yield f"<li><p><code>{esc(question.shown)}</code></p><p>{esc(question.why)}</p></li>"
    yield "</ol></section></main></body></html>"
