"""Helpers that run D programs without a kernel, for tests of the D language."""

import contextlib
import io
import re
import subprocess
import sys

from dtrace.d.language.options import Options
from dtrace.pipeline import Pipeline, ProgramText
from emu.host.errors import KinstError
from kinst_emu.cli import script


def run(*words):
    """Run kdtrace in this process and return (exit status, standard output, standard error)."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            status = script.trace(list(words))
        except KinstError as error:
            said.write(f"dtrace: {error}\n")
            status = 1
    return status, out.getvalue(), said.getvalue()


def command(*words):
    """Run kdtrace in a child process and return (exit status, standard output, standard error)."""
    found = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kdtrace", *words],
                           capture_output=True, text=True, check=False, timeout=120)
    return found.returncode, found.stdout, found.stderr


def quiet(program, *words):
    """Run a D program with -q and return the output without its final newline."""
    status, out, said = run("-q", "-n", program, *words)
    assert status == 0 and not said, said
    assert out.endswith("\n")
    return out[:-1]


def tag(program, *words):
    """Return the D error tag of the first mistake in a program."""
    status, _out, said = run("-x", "errtags", "-n", program, *words)
    assert status == 1
    return re.search(r"\[(D_\w+)\]", said)[1]


def compiled(pipeline, source):
    """Compile a -n program into clauses, as the next program of a pipeline."""
    return pipeline.compile(ProgramText(source, ["test"], string=True))


def pipeline():
    """Return an empty pipeline for programs that are traced together without a kernel."""
    return Pipeline(Options(), None, lambda text: None)
