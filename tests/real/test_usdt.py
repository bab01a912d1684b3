"""Tests of the probes that programs declare themselves, in a base system next to the kernel.

The program of declares.c counts its probes.  It is built by kdtrace -h and -G, and by FreeBSD's own
dtrace(1) in the guest, which is also asked what fires (amd64 only: FreeBSD's fasttrap.ko).
"""

import base64
import os
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from emu.elf.reader import ElfFile, read_file
from images import catalog
from images.build_userland import SOURCE
from images.compiler import target, tool
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

HERE = Path(__file__).parent
DRTI = "usr/lib/dtrace/drti.o"  # shows the probes to the kernel when a program starts
LOADS = 20
PROGRAM = ("declares$target::: { printf(\"%s %s %s %d %d %d\\n\", probemod, probefunc, probename, "
           "(int)arg0, (int)arg1, (int)arg2); }")
MANY = "declares$target:::many { printf(\"%d %d %d %d\", (int)arg6, (int)arg7, (int)arg8, arg9); }"


@pytest.fixture(params=ARCHES, scope="module")
def system(request):
    """Return an architecture, its kernel's path, and a folder with headers and libraries."""
    image = real_kernel(request.param)
    headers = catalog.headers(image)
    if headers is None or not image.path.with_name(catalog.ROOT_FILE).is_file():
        pytest.skip(f"no base system for {request.param}: put the root.ufs and base of 'kinst "
                    f"images fetch RELEASE/ARCH --base' next to {image.path}")
    return request.param, str(image.path), headers


def cc(arch, headers, *words):
    port = target(SOURCE, arch)
    subprocess.run([tool("clang"), f"--target={port.triple}", *port.flags, f"--sysroot={headers}",
                    "-O2", f"--ld-path={shutil.which(tool('ld.lld'))}", *map(str, words)],
                   check=True)


def compiled(folder, arch, headers):
    """Write the header and the object files of the program and the library to a folder."""
    script = str(HERE / "declares.d")
    assert run("kdtrace", "-h", "-s", script, "-o", str(folder / "declares.h")).returncode == 0
    for name in ("declares", "libdeclares"):
        cc(arch, headers, "-I", folder, "-fPIC", "-c", HERE / f"{name}.c", "-o",
           folder / f"{name}.o")


def linked(folder, arch, headers, name, *words):
    drti = headers / DRTI
    cc(arch, headers, *words, *([drti, "-lelf"] if drti.is_file() else []), "-o", folder / name)


@pytest.fixture(scope="module")
def ours(system, tmp_path_factory):
    """Return a folder with the program and the library, made by kdtrace -h and -G."""
    arch, _kernel, headers = system
    folder, made = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("files")
    compiled(folder, arch, headers)
    for name in ("declares", "libdeclares"):
        done = run("kdtrace", "-G", "-s", str(HERE / "declares.d"), "-o",
                   str(folder / f"{name}-probes.o"), str(folder / f"{name}.o"))
        assert done.returncode == 0, done.stderr
        linked(made, arch, headers, "declares" if name == "declares" else f"{name}.so",
               *(["-shared"] if name != "declares" else []), folder / f"{name}.o",
               folder / f"{name}-probes.o")
    return made


def traced(system, files, program, command, *words):
    done = run("kdtrace", "-k", system[1], "--base", "--files", str(files), *words, "-n", program,
               "-c", f"$ /files/{command}")
    assert done.returncode == 0, done.stderr
    return done


def said(text):
    """Return the numbers that the program prints: fired, asked, told."""
    return [int(number) for number in re.search(
        r"fired (\d+), asked (\d+), told (\d+)", text).groups()]


def rows(text):
    """Return the lines of ``PROGRAM`` in a text."""
    found = [line.split() for line in text.splitlines()]
    return [row for row in found if len(row) == 6 and row[0].startswith(("declares", "libd"))]


def test_probes_fire_as_often_as_the_program_counts_with_its_arguments(system, ours):
    done = traced(system, ours, PROGRAM, f"declares {LOADS}", "-q")
    fired, asked, told = said(done.stdout)
    assert (fired, asked, told) == (7, 7, 1)
    found = rows(done.stdout)
    assert [row[2] for row in found].count("go") == asked + told
    assert [row[1:] for row in found if row[2] == "go"][-1][:3] == ["last", "go", "8"]
    assert [(int(row[4]), int(row[5])) for row in found if row[2] == "turned-round"] == [
        (i + 100, i) for i in range(fired)]
    assert [int(row[3]) for row in found if row[0] == "libdeclares.so"] == list(range(LOADS))
    assert [row[3:] for row in found if row[2] == "many"] == [["1", "2", "3"]]
    assert "7 8 -9 10" in traced(system, ours, MANY, "declares", "-q").stdout


def test_a_pattern_matches_the_probes_of_child_processes(system, ours):
    done = traced(system, ours, "declares*:::turned-round { @[probeprov, pid - $target, arg2] = "
                  "count(); }", "declares", "-q")
    found = sorted(line.split() for line in done.stdout.splitlines() if "declares" in line)
    providers = {(row[0], row[1]) for row in found if len(row) == 4}
    assert len(providers) == 2 and {row[2] for row in found if row[1:2] != ["0"]} >= {"20"}
    assert sum(int(row[3]) for row in found if len(row) == 4) == 8


AGAIN = """
#include <sys/wait.h>
#include <unistd.h>
#include "declares.h"

static void __attribute__((noinline)) other(int i) { DECLARES_LOADED(i); __asm__ volatile(""); }

int main(int argc, char **argv)
{
	if (argc > 1) {
		other(30);
		return 0;
	}
	DECLARES_LOADED(10);
	rfork(RFFDG);
	if (fork() == 0) {
		other(20);
		execl(argv[0], argv[0], "again", NULL);
	}
	if (vfork() == 0)
		_exit(0);
	while (wait(NULL) > 0)
		;
	return 0;
}
"""


def test_a_process_is_traced_before_and_after_it_executes_its_program_again(system, tmp_path):
    """A child of vfork(2), and a call of rfork(2) without one, have no probes of their own."""
    arch, _kernel, headers = system
    compiled(tmp_path, arch, headers)
    (tmp_path / "again.c").write_text(AGAIN)
    cc(arch, headers, "-I", tmp_path, "-c", tmp_path / "again.c", "-o", tmp_path / "again.o")
    probes = tmp_path / "probes.o"
    only = tmp_path / "only.d"
    only.write_text("provider declares { probe loaded(int i); };")
    assert run("kdtrace", "-G", "-s", str(only), "-o", str(probes), str(tmp_path / "again.o")
               ).returncode == 0
    files = tmp_path / "files"
    files.mkdir()
    cc(arch, headers, tmp_path / "again.o", probes, "-Wl,--gc-sections", "-s", "-static", "-o",
       files / "again")
    done = traced(system, files, "declares*:::loaded "
                  "{ printf(\"%d %d;\", pid - $target, args[0]); }", "again", "-q")
    assert sorted(done.stdout.replace("\n", "").split(";"))[-3:] == ["0 10", "1 20", "1 30"]
    listed = traced(system, files, "declares*:::loaded", "again", "-l")
    assert len({line.split()[1] for line in listed.stdout.splitlines()[1:]}) == 2


def test_programs_that_system_starts_have_probes(system, ours):
    """The second command is typed only if a probe of the first one fires."""
    done = run("kdtrace", "-k", system[1], "--base", "--files", str(ours), "-wqn",
               'BEGIN { system("/files/declares"); } '
               'declares*:::many /progenyof($pid) && !again++/ { system("/files/declares 3"); } '
               'declares*:::go { @[pid, probefunc] = count(); } tick-30s { exit(5); } '
               'END { system("echo end"); }')
    assert done.returncode == 5, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    counts = [(row[1], int(row[2])) for row in found if len(row) == 3 and row[0].isdecimal()]
    # Two processes with seven calls of work and one of last, and one call in a child of each
    assert sorted(counts) == [("last", 1)] * 2 + [("work", 1)] * 2 + [("work", 7)] * 2
    assert len({row[0] for row in found if len(row) == 3 and row[0].isdecimal()}) == 4
    assert len(re.findall("fired 7, asked 7, told 1", done.stdout)) == 2
    assert done.stdout.count("end\n") == 1 and not done.stderr


def test_a_probe_that_is_not_enabled_answers_no_and_nothing_changes(system, ours):
    """Only a question about an enabled probe makes the program run other code."""
    digests = []
    for program in ("BEGIN { }", "declares$target:::turned-round,declares$target:::many "
                                 "{ @ = count(); }"):
        done = traced(system, ours, program, f"declares {LOADS}", "-q", "--digest")
        assert said(done.stdout) == [7, 0, 1]
        digests.append([line for line in (done.stdout + done.stderr).splitlines()
                        if line.startswith("digest")])
    assert digests[0] and digests[0] == digests[1]


def test_arguments_have_the_types_of_the_declaration(system, ours):
    done = traced(system, ours, "declares$target::last:go { printf(\"<%s %d>\", "
                  "copyinstr((uintptr_t)args[1]), args[0]); } declares$target:::turned-round "
                  "/args[2] == 3/ { printf(\"[%s %d]\", stringof(args[0]), args[1]); }", "declares",
                  "-q")
    assert "<last 8>" in done.stdout and "[three 103]" in done.stdout
    listed = traced(system, ours, "declares$target::work:turned-round", "declares", "-lv").stdout
    assert "args[0]: char *\n\t\targs[1]: int\n\t\targs[2]: int\n" in listed
    stable = "Identifier Names: Stable\n\t\tData Semantics:   Evolving\n\t\tDependency Class: ISA"
    assert stable in listed


# -- FreeBSD's own dtrace(1) -----------------------------------------------------------------------

# drti.o belongs to what dtrace(1) makes, but the guest has no linker; with lazyload, it writes its
# object file without running one.
BUILD = """cd /tmp; cp /files/declares.o /files/declares.d .; kldload dtraceall 2>/dev/null
dtrace -G -x lazyload -s declares.d -o probes.o declares.o; echo status $?
for i in probes declares; do b64encode -m $i.o $i.o; done
"""
LAZY, SYMBOL = b"___SUNW_dof\0", struct.Struct("<IBBHQQ")


@pytest.fixture(scope="module")
def theirs(system, tmp_path_factory):
    """Return a folder with the program, made by dtrace -G in the guest."""
    arch, kernel, headers = system
    folder, made = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("files")
    compiled(folder, arch, headers)
    (folder / "declares.d").write_text((HERE / "declares.d").read_text())
    (folder / "build.sh").write_text(BUILD)
    done = run("kinst", "run", "-k", kernel, "--base", "--files", str(folder), "--",
               "sh /files/build.sh")
    assert "status 0" in done.stdout, done.stdout + done.stderr
    for name in ("probes", "declares"):
        text = re.search(rf"begin-base64 \d+ {name}.o\n(.*?)\n====",
                         done.stdout.replace("\r", ""), re.DOTALL)
        (folder / f"{name}.o").write_bytes(base64.b64decode(text[1]))
    renamed(folder / "probes.o")
    # The code must stay where dtrace(1) found it: riscv64's linkers shorten calls.
    linked(made, arch, headers, "declares", folder / "declares.o", folder / "probes.o",
           *(["-Wl,--no-relax"] if arch == "riscv64" else []))
    return made


def renamed(path):
    """Give the symbol of the DOF its usual name, which is the end of its lazy name."""
    data, file = bytearray(path.read_bytes()), ElfFile(read_file(path))
    table = next(file.of_kind(2))
    strings = file.sections[table.link]
    for at in range(table.offset, table.offset + table.size, SYMBOL.size):
        name, = struct.unpack_from("<I", data, at)
        if data.startswith(LAZY, strings.offset + name):
            struct.pack_into("<I", data, at, name + 1)
    path.write_bytes(bytes(data))


def comparable(row):
    """Return a line of ``PROGRAM`` without the addresses of strings and undeclared arguments."""
    return row[:4] if row[2] == "go" else row[:3] + row[4:] if row[2] == "turned-round" else row


def test_a_program_made_by_freebsds_dtrace_fires_the_same(system, ours, theirs):
    found = []
    for files in (ours, theirs):
        done = traced(system, files, PROGRAM, "declares", "-q")
        assert said(done.stdout) == [7, 7, 1]
        found.append([comparable(row) for row in rows(done.stdout)])
    assert found[0] == found[1] and len(found[0]) > 15


def test_freebsds_dtrace_sees_the_same_probes_arguments_and_counts(system, ours, theirs):
    """Of ``turned-round``, FreeBSD takes arg0, the program's third argument, from rbp."""
    arch, kernel, _headers = system
    if arch != "amd64":
        pytest.skip(f"FreeBSD has no fasttrap.ko for {arch}, so its dtrace(1) traces no programs")
    for files in (ours, theirs):
        (files / "trace.d").write_text(PROGRAM)
        done = run("kinst", "run", "-k", kernel, "--base", "--files", str(files), "--",
                   "kldload dtraceall; dtrace -q -Z -s /files/trace.d -c /files/declares")
        mine = traced(system, files, PROGRAM, "declares", "-q")
        assert said(done.stdout) == said(mine.stdout) == [7, 7, 1]
        found = [[comparable(row) for row in rows(text)] for text in (done.stdout, mine.stdout)]
        assert found[0] == found[1] and len(found[0]) > 15


# -- types of programs -----------------------------------------------------------------------------

TYPES = """
#include <stdio.h>

struct pair { short low; char name[6]; struct pair *next; };
typedef struct pair pair_t;
typedef struct big { long words[4]; } big_t;

long __attribute__((noinline)) take(pair_t *pair, unsigned char count, big_t big, int last)
{
	__asm__ volatile("" : : "r"(pair), "r"(count), "r"(&big), "r"(last) : "memory");
	return pair->low + count + big.words[3] + last;
}

int main(void)
{
	pair_t two = { 2, "two", NULL }, one = { -1, "one", &two };
	big_t big = { { 1, 2, 3, 4 } };

	printf("%ld\\n", take(&one, 200, big, 5));
	return 0;
}
"""
READS = """pid$target:a.out:take:entry { printf("%d %s %d %d %d;", args[0]->low,
    stringof(args[0]->next->name), args[1], args[3], sizeof (pid`big_t));
    print(*(struct pid`pair *)copyin(arg0, sizeof (pid`pair_t))); }
pid$target:a.out:take:return { printf("<%d>", args[1]); }"""


def ctf_tool(name, *words):
    """Run a tool of FreeBSD that makes CTF."""
    if shutil.which(name) is None:
        pytest.skip(f"{name}, which makes CTF, is not installed")
    subprocess.run([name, "-L", "VERSION", *map(str, words)], check=True,
                   env=os.environ | {"VERSION": "1"})


@pytest.mark.parametrize("kind", ["dwarf", "ctf"])
def test_arguments_and_types_of_a_program_come_from_its_debug_data(system, tmp_path, kind):
    arch, _kernel, headers = system
    (tmp_path / "types.c").write_text(TYPES)
    made = tmp_path / "made"
    made.mkdir()
    cc(arch, headers, "-g", "-c", tmp_path / "types.c", "-o", tmp_path / "types.o")
    if kind == "ctf":
        ctf_tool("ctfconvert", tmp_path / "types.o")
    cc(arch, headers, tmp_path / "types.o", "-o", made / "types")
    if kind == "ctf":
        ctf_tool("ctfmerge", "-o", made / "types", tmp_path / "types.o")
    done = traced(system, made, READS, "types", "-q")
    assert "-1 two 200 5 32;" in done.stdout and "<208>" in done.stdout, done.stdout
    assert 'short low = 0xffff\n    char [6] name = [ "one" ]\n' in done.stdout


def test_a_source_line_of_a_program_can_be_probed(system, tmp_path):
    arch, kernel, headers = system
    (tmp_path / "types.c").write_text(TYPES)
    cc(arch, headers, "-g", tmp_path / "types.c", "-o", tmp_path / "types")
    line = TYPES.splitlines().index("\treturn pair->low + count + big.words[3] + last;") + 1
    done = traced(system, tmp_path, f"pid$target:a.out:types.c@{line}: "
                  "{ @[probefunc] = count(); }", "types", "-q")
    assert done.stdout.split() == ["208", "take", "1"]
    for place, message in ((f"types.c@{line + 100}", "has no code in types"),
                           ("other.c@1", "no mapped file has DWARF about a source file other.c")):
        done = run("kdtrace", "-k", kernel, "--base", "--files", str(tmp_path), "-n",
                   f"pid$target::{place}:", "-c", "$ /files/types")
        assert done.returncode == 1 and message in done.stderr


def test_a_program_without_debug_data_has_no_types(system, tmp_path):
    arch, kernel, headers = system
    (tmp_path / "types.c").write_text(TYPES)
    cc(arch, headers, tmp_path / "types.c", "-o", tmp_path / "types")
    for program in ("pid$target:a.out:take:entry { trace(args[0]->low); }",
                    "pid$target:a.out:take:entry { trace(sizeof (pid`pair_t)); }"):
        done = run("kdtrace", "-k", kernel, "--base", "--files", str(tmp_path), "-n", program, "-c",
                   "$ /files/types")
        assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert run("kdtrace", "-k", kernel, "--base", "--files", str(tmp_path), "-qn",
               "pid$target:a.out:take:entry { trace(arg1 & 0xff); }", "-c", "$ /files/types"
               ).stdout.count("200") == 1


# -- hostile programs ------------------------------------------------------------------------------

SPOILED = 12  # number of damaged programs that are tried for each section


@pytest.mark.parametrize("section", [".SUNW_dof", ".SUNW_ctf", ".debug_info"])
def test_damaged_sections_of_a_program_harm_neither_kdtrace_nor_other_probes(
        system, ours, tmp_path, section):
    """All damaged programs run one after the other, and echo(1) is traced as always."""
    arch, _kernel, headers = system
    good = ours / "declares"
    if section != ".SUNW_dof":
        (tmp_path / "types.c").write_text(TYPES)
        cc(arch, headers, "-g", "-c", tmp_path / "types.c", "-o", tmp_path / "types.o")
        if section == ".SUNW_ctf":
            ctf_tool("ctfconvert", tmp_path / "types.o")
        good = tmp_path / "types"
        cc(arch, headers, tmp_path / "types.o", "-o", good)
        if section == ".SUNW_ctf":
            ctf_tool("ctfmerge", "-o", good, tmp_path / "types.o")
    place = ElfFile(read_file(good)).section(section)
    files, chance = tmp_path / "files", random.Random(section)
    files.mkdir()
    for number in range(SPOILED):
        data = bytearray(good.read_bytes())
        for _ in range(chance.randint(1, 20)):
            data[place.offset + chance.randrange(place.size)] = chance.choice(
                [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        (files / f"bad{number}").write_bytes(data)
        (files / f"bad{number}").chmod(0o755)
    command = "; ".join(f"/files/bad{number} >/dev/null" for number in range(SPOILED))
    others = 'proc:::exec-success /execname == "echo"/ { printf("<%s>", execname); }'
    programs = (["declares*:::{ @ = count(); }"] if section == ".SUNW_dof" else
                ["pid$target:a.out:take:entry { trace(args[0]->low); }",
                 "pid$target:a.out:take:entry { print(*(pid`pair_t *)copyin(arg0, 16)); }"])
    for program in programs:
        for line in [command] if section == ".SUNW_dof" else command.split("; ")[:4]:
            done = run("kdtrace", "-k", system[1], "--base", "--files", str(files), "-q", "-n",
                       program, "-n", others, "-c", f"$ {line}; /bin/echo hello")
            assert "Traceback" not in done.stderr
            if done.returncode == 0:
                assert "<echo>" in done.stdout
            else:
                assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr


def test_a_process_that_runs_a_script_has_the_name_of_the_interpreter(system, tmp_path):
    script = tmp_path / "a-script-with-a-long-name"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    done = traced(system, tmp_path, "pid$target:libc.so.7:malloc:entry { @[execname] = count(); }",
                  script.name, "-q")
    assert re.search(r"\bsh +[0-9]{2,}", done.stdout), done.stdout


def test_probes_of_both_kinds_fire_in_one_process(system, ours):
    for first, second in (("pid$target:a.out:last:entry", "declares$target::last:go"),
                          ("declares*::last:go", "pid$target:a.out:last:entry")):
        done = traced(system, ours, f"{first} {{ @[probename] = count(); }} "
                      f"{second} {{ @[probename] = count(); }}", "declares", "-q")
        assert {("entry", "1"), ("go", "1")} <= {
            tuple(line.split()) for line in done.stdout.splitlines()}, done.stdout
