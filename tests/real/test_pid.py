"""Tests that probes on every instruction of a program match the executed instructions."""

import os
import re
import shutil
import struct
from collections import Counter
from pathlib import Path

import pytest

from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.threads import Threads
from dtrace.stacks.user_programs import UserPrograms
from emu.machine.machine import Until
from emu.machine.running_thread import thread_of, thread_word
from emu.unicorn._steps import StepKind, Steps
from images import boots
from images.shell import program_files, run_command, with_userland
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.traced_program import TracedObject, TracedProgram
from kinst.providers.pid import Pid
from kinst.providers.provider import Wanted
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

COMMAND = "work faults 9; cat /etc/motd; work calls 20"
LIMIT = 4_000_000_000
SHELL = "i=0; while [ $i -lt 9 ]; do i=$((i+1)); echo $i; done; exit 3"


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


def in_first_process(kernel, machine, name):
    """Return the ``TracedProgram`` for the process that the shell will create next."""
    last = int.from_bytes(machine.read(machine.symbol("lastpid").address, 4), "little")
    return TracedProgram(last + 1, name, (traced(kernel, name),), True)


def traced(kernel, name):
    return TracedObject(name, UserPrograms(program_files(kernel)).file(name), 0)


def looked_at(kernel, begin, end):
    """Return (instruction count, address) of executed instructions in a range, keyed by thread."""
    machine = boots.booted(kernel)
    word, steps = thread_word(machine), bytearray()
    before = thread_of(machine)
    watched = Steps(machine.engine, steps.extend, [])
    machine.type(b"work faults 9\r")
    run_command_typed(machine)
    watched.close()
    thread, of_thread, threads = before, {}, set()
    for kind, what, a, b in entries(steps):
        if kind == StepKind.STEP_STORE and a == word and what == 8:
            thread = b
        elif kind == StepKind.STEP_INSTRUCTION and begin <= a < end:
            of_thread.setdefault(thread, []).append((b, a))
            threads.add(thread)
    return of_thread


def entries(steps):
    return struct.iter_unpack("<IIQQ", bytes(steps))


def run_command_typed(machine):
    prompt = machine.guest.boot.shell_prompt.encode()
    count = machine.console.text.count(prompt)
    while machine.console.text.count(prompt) == count:
        machine.run(Until(console=machine.guest.boot.shell_prompt,
                          instructions=machine.instructions + LIMIT))


def probes_of(breakpoints, program, kernel, function="", name=""):
    types = kernel_types(kernel)
    wanted = Wanted("pid", function, name, provider=f"pid{program.process}",
                    types=lambda: types, program=lambda process: program)
    return Pid().create(breakpoints, wanted).numbers


def test_every_instruction_of_a_program_fires_where_and_when_it_is_executed(kernel):
    machine = boots.booted(kernel)
    breakpoints = Breakpoints(machine, records=True)
    program = in_first_process(kernel, machine, "work")
    numbers = probes_of(breakpoints, program, kernel)
    functions = list(program.file.symbols.functions())
    begin = min(f.address for f in functions)
    end = max(f.address + f.size for f in functions)
    offsets = {n for n in numbers if breakpoints.names(n)[3] not in ("entry", "return")}
    breakpoints.enable()
    machine.type(b"work faults 9\r")
    run_command_typed(machine)
    fired = [(record.instructions, record.probe.instruction.address)
             for record in breakpoints.firings() if record.probe.id - 1 in offsets]
    breakpoints.disable()
    assert len(fired) > 100
    # The process begins as a copy of the shell, whose code it executes first.
    start = program.file.symbols.find("_start").address
    truth = [rows[[a for _b, a in rows].index(start) :]
             for rows in looked_at(kernel, begin, end).values() if start in {a for _b, a in rows}]
    known = {breakpoints.probe(n).instruction.address for n in offsets}
    # A faulting or repeating instruction is recorded at each restart, but its probe fires once.
    wanted = [[row for before, row in zip([(0, 0), *rows], rows, strict=False)
               if row[1] in known and row[1] != before[1]] for rows in truth]
    assert fired in wanted, "the firings are not the executed instructions"


@pytest.mark.parametrize("path", PATHS)
def test_probes_on_every_instruction_and_all_static_probes_change_nothing(kernel, path):
    plain = boots.booted(kernel)
    ran = run_command(plain, COMMAND, LIMIT)
    machine = boots.booted(kernel)
    breakpoints = Breakpoints(machine, path=path)
    types = kernel_types(kernel)
    program = in_first_process(kernel, machine, "work")
    numbers = probes_of(breakpoints, program, kernel)
    shell = {t.pid: t.process for t in Threads(machine).all()}
    (shell_pid,) = [pid for pid, name in shell.items() if name == "init"]
    init = TracedProgram(shell_pid, "init", (traced(kernel, "init"),), False)
    numbers += probes_of(breakpoints, init, kernel)
    static = [breakpoints.add_static(n, lambda: types)
              for n, one in enumerate(breakpoints.declared) if one.allocation is None]
    breakpoints.enable()
    again = run_command(machine, COMMAND, LIMIT)
    breakpoints.disable()
    assert again == ran and machine.digest() == plain.digest()
    counts = Counter(breakpoints.names(n)[0] for n in [*numbers, *static]
                     if breakpoints.dispatcher.probe(n)[4])
    assert len(numbers) > 1000
    assert {f"pid{program.process}", f"pid{shell_pid}", "syscall", "proc"} <= counts.keys()


def test_d_traces_a_program_given_as_the_target_command(kernel, tmp_path):
    source = tmp_path / "sum.c"
    source.write_text(
        '#include "system.h"\n'
        "static int __attribute__((noinline)) square(int n)\n"
        '{ __asm__ volatile("" : "+r"(n)); return n * n; }\n'
        "int main(int argc, char **argv)\n"
        "{ int s = 0; for (int i = 0; i < 10; i++) s += square(i); return s & 127; }\n")
    traced = run(
        "kdtrace", "-k", str(kernel.path), "-q", "-c", str(source), "-n",
        "pid$target::square:entry { @arguments = sum(arg0); @callers[ufunc(ucaller)] = count(); }"
        "pid$target:a.out:square:return { @results = sum(arg1); }"
        "pid$target:sum:main:entry { printf(\"%s %d\\n\", execname, pid == $target); }"
        "END { printa(\"%@d\\n\", @arguments); printa(\"%@d\\n\", @results); }")
    assert traced.returncode == 0, traced.stderr
    assert traced.stdout.split()[:4] == ["sum", "1", "45", "285"]


def test_a_function_skipped_by_a_long_jump_has_not_returned(kernel):
    """A later return from the same place must not be attributed to the skipped function."""
    traced = run(
        "kdtrace", "-k", str(kernel.path), "-q", "-c", str(Path(__file__).parent / "jump.c"), "-n",
        "pid$target::by_tail:entry, pid$target::target:entry { @entries = count(); }"
        "pid$target::by_tail:return, pid$target::target:return { @returns[arg1] = count(); }"
        "END { printa(\"%@d\\n\", @entries); printa(\"%d %@d\\n\", @returns); }")
    assert traced.returncode == 0, traced.stderr
    assert traced.stdout.split() == ["10", "18", "9", "2"]


FRAMELESS = """
pid$target::by_tail:entry, pid$target::inner:entry { @entries[probefunc] = count(); }
pid$target::by_tail:return, pid$target::inner:return { @returns[probefunc] = count(); }
END { printa("%s %@d\\n", @entries); printa("%s %@d\\n", @returns); }
"""


def test_the_return_of_a_caller_is_not_attributed_to_a_frameless_function(kernel):
    traced = run("kdtrace", "-k", str(kernel.path), "-q", "-c",
                 str(Path(__file__).parent / "frameless.c"), "-n", FRAMELESS)
    assert traced.returncode == 0, traced.stderr
    assert sorted(line for line in traced.stdout.splitlines() if line) == [
        "by_tail 100", "by_tail 100", "inner 100", "inner 100"]


@pytest.mark.parametrize("cpus", ["1", "2", "4"])
def test_a_return_on_one_cpu_is_not_attributed_to_a_call_on_another(kernel, cpus):
    traced = run(
        "kdtrace", "-k", str(kernel.path), "--cpus", cpus, "-q", "-c",
        str(Path(__file__).parent / "beside.c"), "-n",
        "pid$target::by_tail:entry { @entries = count(); }"
        "pid$target::by_tail:return { @returns = count(); }"
        "END { printa(\"%@d\\n\", @entries); printa(\"%@d\\n\", @returns); }")
    assert traced.returncode == 0, traced.stderr
    assert traced.stdout.split() == ["100000", "100000"]


ODD = """
#include "system.h"
static volatile char room[1 << 20];
static void __attribute__((noinline)) fill(void)
{
#ifdef __x86_64__
	volatile char *to = room; unsigned long rest = sizeof(room);
	__asm__ volatile("rep stosb" : "+D"(to), "+c"(rest) : "a"(1) : "memory");
#else
	room[0] = 1;
#endif
}
static long __attribute__((noinline)) ask(void)
{
	unsigned long word = 0;
#if defined(__aarch64__) /* the kernel emulates this instruction */
	__asm__ volatile("mrs %0, id_aa64isar0_el1" : "=r"(word));
#endif
	return CALL0(SYS_getpid) + (word & 1);
}
int main(int argc, char **argv)
{ for (int i = 0; i < 40; i++) { fill(); ask(); } return 0; }
"""


def test_an_instruction_that_enters_the_kernel_fires_once_per_execution(
        kernel, tmp_path):
    """Each probed instruction faults, repeats, is emulated by the kernel, or is a system call.

    Each must fire 40 times, whether it is probed alone or with the others.
    """
    source = tmp_path / "odd.c"
    source.write_text(ODD)

    def counts(places):
        traced = run("kdtrace", "-k", str(kernel.path), "-q", "-c", str(source), "-n",
                    ",".join(f"pid$target:a.out:{place}" for place in places)
                    + ' { @[probefunc, probename] = count(); }'
                    ' END { printa("%s:%s %@d\\n", @); }')
        assert traced.returncode == 0, traced.stderr
        return dict(row.split() for row in traced.stdout.split("\n") if row)

    together = counts(["fill:[0-9a-f]*", "ask:[0-9a-f]*"])
    assert set(together.values()) == {"40"} and len(together) > 5
    for place in together:
        assert counts([place]) == {place: "40"}


def test_an_invalid_probe_in_a_program_causes_a_one_line_error(kernel):
    for wanted, message in (
            ("pid$target::man:entry", "has no function 'man'; did you mean main"),
            ("pid$target::main:nowhere", "is an invalid probe name"),
            ("pid$target::main:fffff", "outside of function 'main'"),
            ("pid$target:libc.so.7::entry", "has no module 'libc.so.7'"),
            ("pid99999:::entry", "process 99999 does not exist"),
            ("pid1:::none", "is an invalid probe name"),
            ("pid:::entry", "the provider name must include a process ID")):
        refused = run("kdtrace", "-k", str(kernel.path), "-n", wanted, "-c", "$ cat /etc/motd")
        assert refused.returncode == 1 and message in refused.stderr, (wanted, refused.stderr)
        assert len(refused.stderr.splitlines()) == 1


def test_the_wrong_file_of_a_program_ends_the_run_with_an_error(kernel, tmp_path):
    files = program_files(kernel)
    wrong = tmp_path / "cat"
    wrong.write_bytes(files["work"].read_bytes())
    refused = run("kdtrace", "-k", str(kernel.path), "--program", str(wrong), "-n",
                  "pid$target:::", "-c", "$ cat /etc/motd")
    assert refused.returncode == 1
    assert re.search(r"process \d+ \(cat\): the code at 0x[0-9a-f]+ differs", refused.stderr)


def test_probing_every_instruction_of_freebsds_shell_does_not_change_its_run(kernel, tmp_path):
    """The shell is ``$KINST_PROGRAMS/ARCH/sh``, built statically from a FreeBSD source tree."""
    arch = re.search(r"amd64|arm64|riscv64", str(kernel.path))[0]
    program = Path(os.environ.get("KINST_PROGRAMS", "/nonexistent")) / arch / "sh"
    if not program.is_file():
        pytest.skip(f"$KINST_PROGRAMS/{arch}/sh is missing: a statically linked FreeBSD sh")
    shutil.copy(program, tmp_path / "sh")
    digests = []
    for wanted in ("BEGIN { }", "pid$target::: { @n = count(); }"):
        ran = run("kdtrace", "-k", str(kernel.path), "--digest", "--files", str(tmp_path), "-n",
                  wanted, "-c", f"$ /files/sh -c '{SHELL}'")
        assert ran.returncode == 0 and "exited with status 3" in ran.stderr, ran.stderr
        assert re.findall(r"^\d$", ran.stdout, re.MULTILINE) == list("123456789")
        digests.append(re.search("digest .*", ran.stdout)[0])
    assert digests[0] == digests[1]
    assert int(re.search(r"^ +(\d+)$", ran.stdout, re.MULTILINE)[1]) > 100_000, "too few firings"


def test_destructive_actions_affect_the_guest(kernel):
    words = ("kdtrace", "-k", str(kernel.path), "-wq", "-n")
    killed = run(*words, "pid$target::main:entry { raise(9); } proc:::exit { trace(arg0); }", "-c",
                 "$ cat /etc/motd; echo status $?")
    assert "status 137" in killed.stdout and "userland" not in killed.stdout, killed.stderr
    written = run(*words, 'syscall::write:entry /execname == "cat"/ '
                  '{ copyoutstr("Hello", arg1, 5); }', "-c", "$ cat /etc/motd")
    assert written.stdout.startswith("Hellorland of a few"), written.stdout
    kept = run(*words, "syscall::open:entry { copyout(execname, (uintptr_t)&`lastpid, 1); }", "-c",
               "$ cat /etc/motd")
    assert "invalid address" in kept.stderr and "A userland" in kept.stdout
    for action in ("panic", "breakpoint"):
        ended = run(*words, f"fbt::sys_open:entry {{ {action}(); }}", "-c", "$ cat /etc/motd")
        assert ended.returncode == 1 and ended.stderr.splitlines()[-1] == (
            f"dtrace: {action} action at probe fbt:kernel:sys_open:entry")
        assert "sys_open" in ended.stdout and "unknown fault" not in ended.stderr
    refused = run("kdtrace", "-k", str(kernel.path), "-qn", "BEGIN { raise(9); }", "-c", "$ true")
    assert refused.returncode == 1 and "Destructive" in refused.stderr


def test_a_process_that_the_command_creates_later_can_be_named(kernel):
    words = ("kdtrace", "-k", str(kernel.path), "-q", "-c", "$ true; cat /etc/motd", "-n")
    first = int(run(*words, "BEGIN { printf(\"%d\", $target); exit(0); }").stdout)
    ran = run(*words, f"pid{first + 1}:::entry {{ @[execname, pid] = count(); }}")
    name, number, count = ran.stdout.split()[-3:]
    assert (name, number) == ("cat", str(first + 1)) and int(count), ran.stderr
    absent = run(*words, f"pid{first + 2}:::entry")
    assert absent.returncode == 1 and f"process {first + 2} does not exist" in absent.stderr


def test_system_runs_commands_in_the_guest(kernel):
    ran = run("kdtrace", "-k", str(kernel.path), "-wq", "-n",
              'BEGIN { system("echo first"); } '
              'proc:::exec-success /execname == "cat"/ { system("echo %s; ls /etc", execname); } '
              'END { system("echo last"); }', "-c", "$ cat /etc/motd; echo target")
    assert ran.stdout.split("\n")[:7] == [
        "A userland of a few hundred lines.", "target", "first", "cat", "motd", "last", ""]
    for words, message in (
            (("BEGIN { system(\"true\"); }", "-c", "strlen(0)"), "needs the guest's shell"),
            (("proc:::exec-success { system(\"cat /etc/motd\"); }", "-c", "$ cat /etc/motd"),
             "called more than 1000 times")):
        refused = run("kdtrace", "-k", str(kernel.path), "-wqn", *words)
        assert refused.returncode == 1 and message in refused.stderr


def test_thread_local_variables_are_not_inherited_by_a_new_process_at_the_same_address(kernel):
    ran = run("kdtrace", "-k", str(kernel.path), "-qn",
              "syscall:::entry /!self->mine/ { self->mine = pid; @new = count(); }"
              "syscall:::entry /self->mine != pid/ { @wrong[self->mine, pid] = count(); }",
              "-c", "$ true; true; cat /etc/motd; true")
    assert ran.stdout.split("\n")[1:] == ["", f"{5:17}", ""], ran.stdout


def test_reports_and_listings_include_probes_in_programs(kernel, tmp_path):
    words = ("kdtrace", "-k", str(kernel.path), "-c", "$ cat /etc/motd", "-n")
    page = tmp_path / "page.html"
    reported = run(*words, "pid$target:::entry, fbt::vn_read:entry { @[ustack()] = count(); }",
               "--report", str(page))
    assert reported.returncode == 0 and "pid" in page.read_text() and "cat`main" in reported.stdout
    assert "cat`0x" not in reported.stdout, "the first function of a program has no caller"
    listed = run(*words, "pid$target::main:", "-l", "-v")
    assert listed.returncode == 0 and " main entry" in listed.stdout
    faulted = run(*words[:4], "$ work faults 40", "-qn",
                  "pid$target::main: { @[probename] = count(); }")
    counts = [int(line.split()[1]) for line in faulted.stdout.splitlines() if line.strip()]
    # The loop stores several times per iteration; the probe on a store that faults fires only once.
    assert max(counts) in (10, 20, 40) and counts.count(max(counts)) > 3
