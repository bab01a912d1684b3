"""HTML page of a trace: one file without external resources, readable without scripts."""

from pathlib import Path

from emu.host.progress import PROGRESS
from kinst.probes.breakpoints import Breakpoints
from kinst_emu.report.page_file import page as filled
from kinst_emu.report.page_file import write_page
from kinst_emu.report.time_units import exact
from kinst_emu.trace_page import bars, flames
from kinst_emu.trace_page.code_table import functions
from kinst_emu.trace_page.collected import Collected
from kinst_emu.trace_page.timeline import timeline

FIRST = 500  # maximum number of firings listed


def page(trace: Collected) -> str:
    """Return the page of a finished trace."""
    found = list(flames.flames(trace))
    parts = [(name, heading) for name, heading, there in (
        ("timeline", "Timeline", trace.times),
        ("aggregations", "Aggregations", trace.aggregations),
        ("stacks", "Stacks", found or trace.stacks_left_out),
        ("code", "Code", trace.code),
        ("firings", "First firings", trace.times)) if there]
    return filled(
        "trace.html", f"{trace.total} firings in {trace.kernel}", _about(trace), parts=parts,
        timeline=timeline(trace) if trace.times else None,
        aggregations=bars.aggregations(trace.aggregations),
        aggregations_left_out=bars.left_out(trace.aggregations),
        flames=found, stacks_left_out=flames.left_out(trace),
        code=functions(trace), code_left_out=trace.left_out,
        firings=[(time, trace.names[probe]) for time, probe in zip(
            trace.times[:FIRST], trace.probes[:FIRST], strict=True)])


def write(path: Path, trace: Collected, breakpoints: Breakpoints) -> None:
    """Finish the data of a trace that has ended, and write its page.

    :raises OSError: if the page cannot be written.
    """
    with PROGRESS.working("writing the page"):
        trace.finish(breakpoints)
        content = page(trace)
    write_page(path, content, "dtrace")


def _about(trace: Collected) -> str:
    text = f"{trace.workload}; {trace.fired} probes fired"
    if trace.times:
        text += f", from {exact(trace.times[0])} to {exact(trace.times[-1])} of virtual time"
    if len(trace.times) < trace.total:
        text += f"; times are shown for the first {len(trace.times)} firings"
    return f"{text}."
