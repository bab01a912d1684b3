"""Tests of stacks that the native runtime walks through a real kernel and its programs."""

import pytest

from images.shell import with_userland
from tests.conftest import ARCHES, real_kernel
from tests.dtrace.stacks.test_native_stacks import OF_KERNEL, both_ways, traced

OF_PROGRAMS = """
    fbt:::entry /n % {every} == 0/ {{
        @user[ustack(6)] = count(); @of_user[ustackdepth, ucaller] = count();
        @family[progenyof(1), progenyof(pid), progenyof(77), pid] = count(); }}
    fbt:::entry /n % {every} == 2/ {{ @registers[uregs[R_PC], uregs[R_SP]] = count(); }}
    sched:::off-cpu {{ @switched[stack(), ustack()] = count(); }}
"""


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
