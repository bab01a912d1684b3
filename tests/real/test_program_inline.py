"""Tests of the probes on inline copies in programs, in a base system next to the kernel.

The program of inlines.c counts how often its inline functions are entered and left.
"""

import re

import pytest

from tests.kinst_emu.commands.test_commands import run
from tests.real.test_usdt import HERE, cc, system, traced  # noqa: F401

FUNCTIONS = ("looping", "nested", "partial", "ending", "jumping", "handling", "filling", "sharing",
             "faulting")
PROBES = "\n".join(
    f"pid$target:{module}:{name}:entry {{ @entered[\"{name}\"] = count(); }}\n"
    f"pid$target:{module}:{name}:return {{ @left[\"{name}\"] = count(); }}"
    for module, name in [*(("a.out", name) for name in FUNCTIONS), ("libinlines.so", "inside")]
) + '\nEND { printa("entered %s %@d\\n", @entered); printa("left %s %@d\\n", @left); }'
COMMAND = "inlines /files/libinlines.so"
BUILDS = {"movable": ("-O2", "-fPIE", "-pie"), "fixed": ("-O2", "-no-pie"),
          "small": ("-Os", "-fPIE", "-pie"), "fast": ("-O3", "-no-pie")}


def built(system, folder, *flags):  # noqa: F811
    arch, _kernel, headers = system
    cc(arch, headers, "-g", *flags, HERE / "inlines.c", "-lpthread", "-o", folder / "inlines")
    cc(arch, headers, "-g", "-O2", "-fPIC", "-shared", HERE / "libinlines.c", "-o",
       folder / "libinlines.so")
    return folder


@pytest.fixture(scope="module")
def files(system, tmp_path_factory):  # noqa: F811
    return built(system, tmp_path_factory.mktemp("files"), *BUILDS["movable"])


def counts(text, word=""):
    """Return the numbers on the lines that begin with a word and then a function's name."""
    return {found[1]: tuple(map(int, found[2].split())) for found in re.finditer(
        rf"^{word}(\w+)((?: \d+)+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("build", BUILDS)
def test_inline_functions_fire_as_often_as_the_program_counts(system, tmp_path, build):  # noqa: F811
    done = traced(system, built(system, tmp_path, *BUILDS[build]), PROBES, COMMAND, "-q")
    told = counts(done.stdout)
    assert len(told) == len(FUNCTIONS) + 1 and all(all(one) for one in told.values()), done.stdout
    entered, left = (counts(done.stdout, f"{word} ") for word in ("entered", "left"))
    assert entered == {name: one[:1] for name, one in told.items()}
    assert left == {name: one[1:2] for name, one in told.items()}


def test_probes_of_inline_functions_do_not_change_the_run(system, files):  # noqa: F811
    digests = [re.search("digest .*", traced(system, files, program, COMMAND, "--digest").stdout)[0]
               for program in ("BEGIN { }", PROBES)]
    assert digests[0] == digests[1]


def test_arguments_of_inline_functions_are_those_of_the_program(system, files):  # noqa: F811
    """Where an argument is optimized out, a firing ends with an error instead of a wrong sum."""
    known = 0
    for module, name in [("a.out", "nested"), ("a.out", "looping"), ("a.out", "partial"),
                         ("libinlines.so", "inside")]:
        done = run("kdtrace", "-k", system[1], "--base", "--files", str(files), "-q", "-n",
                   f"pid$target:{module}:{name}:entry {{ @all = count(); @sum = sum(args[0]); }} "
                   'END { printa("all %@d\\n", @all); printa("sum %@d\\n", @sum); }',
                   "-c", f"$ /files/{COMMAND}")
        if done.returncode:
            assert "is optimized out at" in done.stderr
            continue
        errors = done.stderr.count("unavailable argument")
        entered, _left, total = counts(done.stdout)[name]
        assert int(re.search(r"^all (\d+)$", done.stdout, re.MULTILINE)[1]) == entered
        found = re.search(r"^sum (-?\d+)$", done.stdout, re.MULTILINE)
        if not errors:
            known += 1
            assert int(found[1]) == total
    assert known


def test_what_cannot_be_probed_is_one_line(system, files):  # noqa: F811
    arch, _kernel, headers = system
    cc(arch, headers, HERE / "inlines.c", "-lpthread", "-o", files / "plain")
    for program, place, message in (
            ("inlines", "a.out:nested:10", "'nested' exists only as 2 inline copies; use entry"),
            ("inlines", "a.out:nestd:entry", "inlines has no function 'nestd'"),
            ("inlines", "a.out:nest*:entry", "has no function 'nest*'"),
            ("plain", "a.out:nested:entry",
             "plain has no function 'nested'; an inline function has probes only if there is")):
        done = run("kdtrace", "-k", system[1], "--base", "--files", str(files), "-n",
                   f"pid$target:{place}", "-c", f"$ /files/{program}")
        assert done.returncode == 1 and message in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1


def test_each_copy_is_listed_once_by_its_place(system, files):  # noqa: F811
    done = run("kdtrace", "-k", system[1], "--base", "--files", str(files), "-l", "-n",
               "pid$target::nested:entry", "-n", "pid$target::main:entry", "-c",
               f"$ /files/{COMMAND}")
    assert done.returncode == 0, done.stderr
    found = [tuple(row.split()[2:]) for row in done.stdout.splitlines()[1:]]
    assert len(found) == 3 and len(set(found)) == 3 and ("inlines", "main", "entry") in found


ORDER = """
pid$target:a.out:nested:entry { printf("nested "); }
pid$target:a.out:main:entry { printf("main "); }
pid$target::looping:entry { printf("first "); }
pid$target:a.out:looping:entry { printf("second "); }
"""
METHODS = """
#include <stdio.h>
#include <unistd.h>
static volatile long sum;
static long __attribute__((noinline)) add(long n) { sum += n; return n; }
namespace one { struct Reader {
    long __attribute__((always_inline)) read(long n) { return add(n); }
    template <class T> T __attribute__((always_inline)) as(T n) { return (T)add(n) + n; }
}; }
int main(int argc, char **)
{
    one::Reader reader;
    char byte;
    for (long i = 0; i < 7; i++)
        sum += reader.read(i) + ::read(99, &byte, 1);
    reader.as<int>(argc);
    printf("%ld\\n", (long)sum);
}
"""


def test_copies_fire_in_the_order_of_the_clauses(system, files):  # noqa: F811
    done = traced(system, files, ORDER, COMMAND, "-q")
    assert done.stdout.split()[:4] == ["main", "nested", "first", "second"]


def test_a_method_is_found_by_its_symbol_and_not_taken_for_a_function(system, tmp_path):  # noqa: F811
    arch, _kernel, headers = system
    (tmp_path / "m.cc").write_text(METHODS)
    made = tmp_path / "made"
    made.mkdir()
    cc(arch, headers, "-x", "c++", "-g", "-fno-unroll-loops", tmp_path / "m.cc", "-o", made / "m")
    done = traced(system, made, "pid$target:a.out:_ZN3one6Reader4readEl:entry { @m = count(); }"
                  "pid$target:a.out:_ZN3one6Reader2asIiEET_S2_:entry { @t = count(); }"
                  "pid$target::read:entry { @[probefunc] = count(); }", "m", "-q")
    assert done.stdout.split()[1:] == ["7", "1", "read", "7"], done.stdout
    done = run("kdtrace", "-k", system[1], "--base", "--files", str(made), "-n",
               "pid$target:a.out:read:entry", "-c", "$ /files/m")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "have the names of symbols: _ZN3one6Reader4readEl" in done.stderr
