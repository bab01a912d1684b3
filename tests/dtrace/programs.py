"""D programs run without a kernel, as the tests of the language do."""

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
    """(exit status, standard output, standard error) of a command line."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            status = script.trace(list(words))
        except KinstError as error:
            said.write(f"dtrace: {error}\n")
            status = 1
    return status, out.getvalue(), said.getvalue()


def command(*words):
    """The same of the command itself, in a process of its own."""
    found = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kdtrace", *words],
                           capture_output=True, text=True, check=False, timeout=120)
    return found.returncode, found.stdout, found.stderr


def quiet(program, *words):
    """What a program prints, without the newline at the end of all traces."""
    status, out, said = run("-q", "-n", program, *words)
    assert status == 0 and not said, said
    assert out.endswith("\n")
    return out[:-1]


def tag(program, *words):
    """The tag of a program's first mistake."""
    status, _out, said = run("-x", "errtags", "-n", program, *words)
    assert status == 1
    return re.search(r"\[(D_\w+)\]", said)[1]


def compiled(pipeline, source):
    """The clauses of a program of a command line, which other programs of the pipeline precede."""
    return pipeline.compile(ProgramText(source, ["test"], string=True))


def pipeline():
    """Of programs that are traced together, without a kernel."""
    return Pipeline(Options(), None, lambda text: None)
