"""Results of ``kinst trial`` as an HTML page without scripts."""

from emu.elf.image import Image
from images.catalog import described
from kinst.verify.trial.verdicts import Verdicts
from kinst_emu.report.page_file import page as filled
from kinst_emu.report.relocate_report import Result
from kinst_emu.report.trial_report import modules_of


def page(result: Result, compared: Verdicts | None, image: Image) -> str:
    """Return the results of ``kinst trial`` as an HTML page."""
    report = result.report
    kinds = [{"name": name, "count": len(some), "place": result.places[some[0].code],
              "bytes": some[0].code.hex(" "), "text": result.text(some[0].code),
              "verdict": some[0].verdict, "state": some[0].state,
              "lines": [*some[0].differences(), *some[0].source.splitlines(),
                        f"reproduce: {result.again(some[0])}"]}
             for (_verdict, name), some in result.mismatched().items()]
    return filled(
        "trial.html", f"Trial of kinst on {described(image)}",
        f"{image.path} ({result.arch}) with {modules_of(image)}",
        total=sum(report.verdicts.values()), mishandled=len(report.mismatches),
        executed=[(count, word) for word, count in report.verdicts.most_common()], kinds=kinds,
        unproven=[(result.places[code], code.hex(" "), result.text(code), word)
                 for code, word in report.unproven.items()],
        compared=compared,
        agreed=[] if compared is None else [
            (count, word) for word, count in compared.agreed.most_common()],
        differences=[] if compared is None else [
            (count, kind, f"{e.place}: module: {e.theirs}; kinst-emu: {e.ours}")
            for kind, count in compared.differences.most_common()
            for e in compared.examples[kind][:1]])
