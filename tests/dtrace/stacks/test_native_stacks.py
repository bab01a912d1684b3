"""Tests that stacks walked by the native runtime match the slower reference walk in Python."""

import contextlib
import io

import pytest

from dtrace.run.unicorn_guest import UnicornGuest
from kinst_emu.cli import script
from kinst_emu.terminal.shared_output import shared

# D programs that count firings in the variable n and record every Nth firing (N is `every`).
OF_KERNEL = """
    fbt::: {{ n++; }}
    fbt:::entry /n % {every} == 0/ {{
        @stack[stack(12)] = count(); @depth[stackdepth] = count(); @caller[caller] = count(); }}
    fbt:::return /n % {every} == 1/ {{ @back[caller, stackdepth, stack(3)] = count(); }}
    kinst::{function}: {{ @inside[stack(), stackdepth, caller] = count(); }}
    profile:::tick-1msec {{ @of_timer[stackdepth, caller] = count(); }}
"""


def traced(*words):
    """Run kdtrace and return (exit status, standard output and guest console, standard error)."""
    output = io.BytesIO()
    with contextlib.redirect_stdout(shared(io.TextIOWrapper(output, encoding="utf-8"))) as out:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = script.trace(list(words))
        out.flush()
        return status, output.getvalue().decode(), said.getvalue()


def both_ways(monkeypatch, *words):
    native = traced(*words)
    with monkeypatch.context() as patched:
        patched.setattr(UnicornGuest, "walk_natively", lambda self, marked: None)
        return native, traced(*words)


@pytest.mark.parametrize("options", [(), ("-x", "stackinline")])
def test_native_stacks_of_a_teaching_kernel_match_python(arch, monkeypatch, options):
    native, slow = both_ways(
        monkeypatch, "-q", "-k", f"teaching/{arch}", *options, "-n",
        OF_KERNEL.format(every=3, function="fibonacci"), "-c", "fibonacci(6)")
    assert native == slow
    assert native[1].count("fibonacci") > 50 and not native[2]
