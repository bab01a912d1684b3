"""Fuzzer of the interactive session's magics: random lines to execute and to complete.

Introspection finds all magics of ``KernelMagics``. A line may return or raise a KinstError, which
the session prints on one line; anything else is a bug. Left out are the session's functions, which
belong to the Python interface (``verbs``), and calls such as ``fibonacci`` whose arguments decide
how long they take.
"""

import atexit
import contextlib
import io
import random
import tempfile
from pathlib import Path

from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import kinst_emu
from kinst_emu.shell.extension import load
from kinst_emu.shell.magics import KernelMagics
from tests.conftest import ARCHES
from tests.fuzzing.changes import text_changed

# Valid lines keyed by magic; {file} is the path of a recording.
LINES = {
    "kinst": ("-k teaching/{arch}", "{file}", "-k teaching/{arch} {file}"),
    "dtrace": ("-n 'fbt::strlen:entry {{ @[probefunc, stack(2)] = quantize(arg0); }}' "
               "-c 'strlen(\"hello\")'", "-n 'BEGIN {{ trace($$1); exit(0); }}' -x quiet abc",
               "-n 'kinst::strlen:0 {{ print(*(struct note *)arg0); }}' -c '$ strings'"),
    "explain": ("strlen:0 -c 'strlen(\"a\")'",
                "strlen:0 -c 'strlen(\"a\")' -n '{{ trace(arg0); }}' --hit 1"),
    "disas": ("strlen", "mix"),
    "layout": ("struct note", "malloc", "ticks", "int", "strtoul"),
    "stack": ("",),
    "who_wrote": ("ticks", "note.text"),
}
CELLS = {"dtrace": "fbt::strlen:entry\n{\n\tself->a = arg0;\n\ttrace(copyinstr(arg0));\n}\n"}
NAMES = tuple(sorted(KernelMagics.magics["line"]))


class Ground:
    """A shell with the magics loaded, a machine, and a recording."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.recording = Path(self.folder.name) / "a.rec"
        machine = kinst_emu.open("teaching/amd64").boot("64M")
        with machine.record(self.recording):
            machine.call("strlen", "hello")
        self.shell = InteractiveShell()
        # Unregister IPython's exit handler, which would use a deleted working directory.
        atexit.unregister(self.shell.atexit_operations)
        self.session = load(self.shell)
        self.shell.run_line_magic("kinst", "-k teaching/amd64")


def ground() -> Ground:
    """Start a shell, and check that ``LINES`` covers all magics."""
    assert set(NAMES) == set(LINES), "LINES lacks a magic"
    return Ground()


def once(rng: random.Random, made: Ground) -> str:
    """Execute or complete a line; return ``returned``, ``refused`` or ``completed``."""
    name = rng.choice(NAMES)
    line = rng.choice(LINES[name]).format(arch=rng.choice(ARCHES), file=made.recording)
    if rng.random() < 0.9:
        line = text_changed(rng, line.encode(), []).decode("utf-8", "surrogateescape")
    line = " ".join(f"%{name} {line}".splitlines())
    printed = io.StringIO()
    if rng.random() < 0.2:
        end = rng.randrange(len(line) + 1)
        # IPython's matchers may write to standard error.
        with provisionalcompleter(), contextlib.redirect_stderr(printed):
            for _one in made.shell.Completer.completions(line, end):
                pass
        return "completed"
    if name in CELLS and rng.random() < 0.5:
        cell = text_changed(rng, CELLS[name].encode(), []).decode("utf-8", "surrogateescape")
        line = f"%{line}\n{cell}"
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        result = made.shell.run_cell(line)
    traced = made.shell.user_ns.pop("traced", None)
    if traced is not None:
        traced.close()
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        return "returned"
    if isinstance(error, UsageError | SyntaxError | UnicodeEncodeError):
        return "refused"  # IPython raises these errors for a line that does not name a magic
    if not isinstance(error, kinst_emu.KinstError):
        raise error
    if "Traceback" in printed.getvalue():
        raise AssertionError(f"{line!r} printed a traceback")
    return "refused"
