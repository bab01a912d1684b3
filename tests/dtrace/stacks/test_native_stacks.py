"""Tests that stacks walked by the native runtime match the slower reference walk in Python."""

import contextlib
import io

import pytest

from dtrace.run.unicorn_guest import UnicornGuest
from images.shell import with_userland
from kinst_emu.cli import script
from kinst_emu.terminal.shared_output import shared
from tests.conftest import ARCHES, real_kernel

# D programs that count firings in the variable n and record every Nth firing (N is `every`).
OF_KERNEL = """
    fbt::: {{ n++; }}
    fbt:::entry /n % {every} == 0/ {{
        @stack[stack(12)] = count(); @depth[stackdepth] = count(); @caller[caller] = count(); }}
    fbt:::return /n % {every} == 1/ {{ @back[caller, stackdepth, stack(3)] = count(); }}
    kinst::{function}: {{ @inside[stack(), stackdepth, caller] = count(); }}
    profile:::tick-1msec {{ @of_timer[stackdepth, caller] = count(); }}
"""
OF_PROGRAMS = """
    fbt:::entry /n % {every} == 0/ {{
        @user[ustack(6)] = count(); @of_user[ustackdepth, ucaller] = count();
        @family[progenyof(1), progenyof(pid), progenyof(77), pid] = count(); }}
    fbt:::entry /n % {every} == 2/ {{ @registers[uregs[R_PC], uregs[R_SP]] = count(); }}
    sched:::off-cpu {{ @switched[stack(), ustack()] = count(); }}
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


@pytest.mark.parametrize("name", ARCHES)
def test_native_stacks_of_kernel_and_user_code_match_python(name, monkeypatch):
    kernel = with_userland(real_kernel(name))
    native, slow = both_ways(
        monkeypatch, "-q", "-k", str(kernel.path), "-n",
        (OF_KERNEL + OF_PROGRAMS).format(every=197, function="sys_write"), "-c",
        "$ cat /etc/motd; ls / | wc")
    assert native == slow
    assert native[0] == 0 and len(native[1].splitlines()) > 500


DEEP = """
#include "system.h"
static __attribute__((noinline)) long down(long left)
{
	long found = left ? down(left - 1) : (long)CALL0(SYS_getpid);
	__asm__ volatile("" : "+r"(found));
	return found;
}
int main(int argc, char **argv) { down(1000); return down(3000) == 0; }
"""


@pytest.mark.parametrize("name", ARCHES)
def test_a_user_stack_deeper_than_the_limit_is_a_fault(name, tmp_path):
    kernel, source = with_userland(real_kernel(name)), tmp_path / "deep.c"
    source.write_text(DEEP)
    status, out, said = traced(
        "-q", "-k", str(kernel.path), "-c", str(source), "-n", """
        syscall::getpid:entry /pid == $target/ { printf("depth %d\\n", ustackdepth); }
        ERROR { printf("fault %d\\n", arg4 == DTRACEFLT_BADSTACK); }""")
    assert status == 0 and "bad stack" in said
    rows = [line.split() for line in out.splitlines()]
    depth, fault = [row for row in rows if row[:1] in (["depth"], ["fault"])]
    assert depth[0] == "depth" and 1000 < int(depth[1]) < 1010 and fault == ["fault", "1"]
