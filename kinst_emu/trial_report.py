"""What ``kinst trial`` found: for people, for programs (JSON), as a page."""

import html
from typing import Any

from emu.elf import Image
from kinst.trial.verdicts import Verdicts
from kinst_emu.relocate_report import MAX_KINDS, Result

SHOWN = 3  # examples of a kind of difference that are printed


def _modules(image: Image) -> str:
    return ", ".join(f"{m.name} ({m.file.build_id[:12] or 'no build id'})" for m in image.modules)


def show(result: Result, compared: Verdicts | None, image: Image) -> None:
    print(f"{image.path} with {_modules(image)}")
    if compared is not None:
        _show_verdicts(result, compared)
    report = result.report
    kinds = result.mismatched()
    for (_verdict, name), some in list(kinds.items())[:MAX_KINDS]:
        m = some[0]
        print(f"{result.places[m.code]}: {m.code.hex(' ')}  {result.text(m.code)}  "
              f"({m.verdict}, state {m.state})")
        for line in m.differences():
            print(f"    {line}")
        for line in m.source.splitlines():
            print(f"    {line}")
        print(f"    again: {result.again(m)}")
        if len(some) > 1:
            print(f"    and {len(some) - 1} more of {name} (--json lists them)")
    if len(kinds) > MAX_KINDS:
        print(f"{len(kinds) - MAX_KINDS} more kinds of instructions mismatch (--json lists them)")
    total = sum(report.verdicts.values())
    if total:
        print(f"{total} distinct encodings executed through the module, "
              f"{len(report.mismatches)} mishandled")
        for verdict, count in report.verdicts.most_common():
            print(f"{count:>9}  {verdict}")
    for note in dict.fromkeys(report.noted.values()):
        count = sum(one == note for one in report.noted.values())
        print(f"{count:>9}  of them: {note}")


def _show_verdicts(result: Result, compared: Verdicts) -> None:
    same = sum(compared.agreed.values())
    print(f"{compared.functions} functions, {compared.left_out} left out by both; of {same} "
          "instructions the verdict is the same")
    for word, count in compared.agreed.most_common():
        print(f"{count:>9}  {word}")
    for number, count in compared.errors.most_common():
        print(f"{count:>9}  functions in which the module stopped with error {number}")
    for kind, count in compared.differences.most_common():
        print(f"{count:>9}  {kind}")
        for one in compared.examples[kind][:SHOWN]:
            text = f"  {result.text(one.code)}" if one.code else ""
            print(f"           {one.place}{text}  (the module: {one.theirs}; ours: {one.ours})")


def as_json(result: Result, compared: Verdicts | None, image: Image) -> dict[str, Any]:
    report = result.report
    found: dict[str, Any] = {
        "kernel": str(image.path), "architecture": result.arch, "seed": result.seed,
        "modules": [{"name": m.name, "build_id": m.file.build_id} for m in image.modules],
        "executed": dict(report.verdicts.most_common()),
        "notes": {code.hex(): note for code, note in report.noted.items()},
        "mishandled": [
            {"bytes": m.code.hex(), "place": result.places[m.code],
             "instruction": result.text(m.code), "verdict": m.verdict, "state": m.state,
             "differences": m.differences(), "source": m.source, "again": result.again(m)}
            for m in report.mismatches],
    }
    if compared is not None:
        found["verdicts"] = {
            "functions": compared.functions, "left_out": compared.left_out,
            "agreed": dict(compared.agreed.most_common()),
            "errors": {str(number): count for number, count in compared.errors.items()},
            "differences": [
                {"kind": kind, "count": count, "examples": [
                    {"place": e.place, "bytes": e.code.hex(), "module": e.theirs, "ours": e.ours}
                    for e in compared.examples[kind]]}
                for kind, count in compared.differences.most_common()],
        }
    return found


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem; border: 1px solid; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
section { margin-block: 2rem; }
"""


def page(result: Result, compared: Verdicts | None, image: Image) -> str:
    """One file without scripts and without anything from elsewhere."""
    esc, report = html.escape, result.report
    out = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
           '<meta name="viewport" content="width=device-width, initial-scale=1">',
           f"<title>Trial of {esc(image.path.name)}</title><style>{STYLE}</style></head><body>",
           f"<h1>Trial of kinst, {esc(result.arch)}</h1>",
           f"<p><code>{esc(str(image.path))}</code> with {esc(_modules(image))}</p>"]
    total = sum(report.verdicts.values())
    if total:
        out.append(f"<section><h2>Executed</h2><p>{total} distinct encodings through the module, "
                   f"{len(report.mismatches)} mishandled.</p>")
        out.append(_table(["Encodings", "What became of them"],
                          [(count, word) for word, count in report.verdicts.most_common()]))
        for (_verdict, name), some in result.mismatched().items():
            m = some[0]
            lines = "\n".join([*m.differences(), *m.source.splitlines(),
                               f"again: {result.again(m)}"])
            out.append(f"<h3>{esc(name)}: {len(some)} mishandled</h3><p><code>"
                       f"{esc(result.places[m.code])}: {esc(m.code.hex(' '))} "
                       f"{esc(result.text(m.code))}</code> ({esc(m.verdict)}, state {m.state})"
                       f"</p><pre tabindex=\"0\">{esc(lines)}</pre>")
        out.append("</section>")
    if compared is not None:
        out.append(f"<section><h2>Verdicts</h2><p>{compared.functions} functions, "
                   f"{compared.left_out} left out by both.</p>")
        out.append(_table(["Instructions", "Both say"],
                          [(count, word) for word, count in compared.agreed.most_common()]))
        out.append("<h3>Differences</h3>")
        out.append(_table(["Count", "Kind", "First"], [
            (count, kind, f"{e.place}: the module: {e.theirs}; ours: {e.ours}")
            for kind, count in compared.differences.most_common()
            for e in compared.examples[kind][:1]]))
        out.append("</section>")
    return "\n".join([*out, "</body></html>\n"])


def _table(heads: list[str], rows: list[tuple[object, ...]]) -> str:
    esc = html.escape
    head = "".join(f'<th scope="col">{esc(text)}</th>' for text in heads)
    body = "".join("<tr>" + "".join(
        f'<td class="n">{cell}</td>' if isinstance(cell, int) else f"<td>{esc(str(cell))}</td>"
        for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
