"""Tests of interleavings of calls and programs on GENERIC kernels.

Known races are found, correct code has no findings, and removing a function's lock is detected.
"""

import io
import itertools
import os
import re
import struct
from pathlib import Path

import capstone
import pytest
from elftools.elf.elffile import ELFFile

from emu.arch.architectures import arch_of
from images import catalog
from kinst_emu.explore.from_python import explore
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

SET_ZF = b"\x39\xc0"  # cmp eax, eax
TWICE = {
    "uifind": ("", "uifind(77)"), "alloc_unr": ("u = new_unrhdr(1, 100, 0)", "alloc_unr(u)"),
    "alloc_unr_specific": ("u = new_unrhdr(1, 100, 0)", "alloc_unr_specific(u, 5)"),
    "free_unr": ("u = new_unrhdr(1, 100, 0); alloc_unr(u); alloc_unr(u); alloc_unr(u)",
                 "free_unr(u, 1)", "free_unr(u, 2)"),
    "loginclass_find": ("", 'loginclass_find("a")'),
    "loginclass_free": ('l = loginclass_find("q"); m = loginclass_find("r")',
                        "loginclass_free(l)", "loginclass_free(m)"),
    "osd_register": ("", "osd_register(0, 0, 0)"),
    "osd_deregister": ("b = osd_register(0, 0, 0)", "osd_deregister(0, b)",
                       "osd_register(0, 0, 0)"),
    "hhook_head_get": ("", "hhook_head_get(9, 7)", "hhook_head_register(9, 8, 0, 1)"),
    "if_alloc_domain": ("", "if_alloc(6)"),
    "devctl_queue": ("", 'devctl_notify("a", "b", "c", 0)', 'devctl_notify("d", "e", "f", 0)'),
    "uifree": ("u = uifind(81)", "uifree(u)", "uifind(81)"),
}


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return real_kernel(request.param)


def compare_and_swaps_amd64(code, address):
    """Yield patches (offset, bytes) that make each ``lock cmpxchg`` succeed without a store."""
    for instruction in capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm(code, address):
        if instruction.mnemonic == "lock cmpxchg":
            yield instruction.address - address, SET_ZF + b"\x90" * (instruction.size - len(SET_ZF))


def compare_and_swaps_arm64(code, address):
    """Yield patches that make each LDXR, CMP, B.NE, STXR sequence succeed without a store."""
    words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
    for n in range(len(words) - 3):
        load, compare, branch, store = words[n : n + 4]
        if (load & 0xFFFF7C00 == 0xC85F7C00 and compare & 0xFFE0FC1F == 0xEB00001F
                and branch & 0xFF00001F == 0x54000001 and store & 0xFFE07C00 == 0xC8007C00):
            yield 4 * (n + 2), struct.pack("<I", 0xD503201F)
            yield 4 * (n + 3), struct.pack("<I", 0x52800000 | store >> 16 & 31)


def compare_and_swaps_riscv64(code, address):
    """Yield patches that make compare-and-swaps (LR.D, a branch, SC.D) succeed without a store."""
    for at in range(0, len(code) - 11, 2):
        load, branch, store = struct.unpack("<3I", code[at : at + 12])
        if load & 0xF9F0707F != 0x1000302F:
            continue
        if branch & 0xE003 == 0xE001:
            yield at + 4, struct.pack("<H", 1)
            store, after = int.from_bytes(code[at + 6 : at + 10], "little"), at + 6
        elif branch & 0x707F == 0x1063:
            yield at + 4, struct.pack("<I", 0x13)
            after = at + 8
        else:
            continue
        assert store & 0xF800707F == 0x1800302F, "a store-conditional"
        yield after, struct.pack("<I", 0x13 | store & 31 << 7)


COMPARE_AND_SWAPS = {"amd64": compare_and_swaps_amd64, "arm64": compare_and_swaps_arm64,
                     "riscv64": compare_and_swaps_riscv64}


def without_locks(image, function, directory, arch):
    """Copy a kernel's file and patch a function so that its locks have no effect.

    The function's compare-and-swaps, which take and release locks, always succeed and change
    nothing. The copy uses the debug data of the original kernel.
    """
    raw, symbol = bytearray(Path(image.path).read_bytes()), image.symbols.find(function)
    segment = next(s for s in ELFFile(io.BytesIO(bytes(raw))).iter_segments()
                   if s["p_type"] == "PT_LOAD"
                   and s["p_vaddr"] <= symbol.address < s["p_vaddr"] + s["p_filesz"])
    code, taken = image.virtual_to_file(symbol.address, symbol.size), 0
    for at, new in COMPARE_AND_SWAPS[arch](code, symbol.address):
        at += segment["p_offset"] + symbol.address - segment["p_vaddr"]
        raw[at : at + len(new)] = new
        taken += 1
    assert taken >= 2, "at least one to take the lock and one to release it"
    (directory / "kernel").write_bytes(raw)
    debug = image.path.with_name("kernel.debug")
    if debug.exists():
        os.symlink(debug, directory / "kernel.debug")
    return catalog.find(str(directory / "kernel"))


def runs_of(function):
    setup, *runs = TWICE[function]
    return setup, runs * 2 if len(runs) == 1 else runs


@pytest.mark.parametrize("function", TWICE)
def test_removing_a_lock_is_detected_and_the_original_kernel_has_no_findings(
        kernel, function, tmp_path):
    setup, runs = runs_of(function)
    assert explore(kernel, *runs, setup=setup, limit=600).findings == []
    patched = without_locks(kernel, function, tmp_path, arch_of(kernel).name)
    result = explore(patched, *runs, setup=setup, limit=600)
    assert result.findings and result.results, result


def test_two_registrations_of_a_hook_both_succeed_only_in_a_concurrent_run(kernel):
    """Reproduce the race that docs/races.md describes."""
    call = "hhook_head_register(9, 5, 0, 1)"
    result = explore(kernel, call, call)
    assert result.results == {(0, 17), (17, 0)}
    assert [(finding.kind, finding.preemptions) for finding in result.findings] == [("result", 1)]
    again = explore(kernel, call, call, schedule=result.findings[0].schedule)
    assert [finding.kind for finding in again.findings] == ["result"]


@pytest.mark.parametrize("runs", [('kern_setenv("a_b", "1")', 'kern_unsetenv("a_b")'),
                                  ("uifind(77)", "uifind(77)"), ("if_alloc(6)", "if_alloc(6)")])
def test_correct_calls_have_no_findings(kernel, runs):
    result = explore(kernel, *runs, limit=400)
    assert result.findings == [] and result.tried > 10


def test_a_recorded_schedule_is_replayed_with_probes(kernel, tmp_path):
    path = tmp_path / "order.rec"
    runs = ("--run", 'kern_setenv("a_b", "1")', "--run", 'kern_unsetenv("a_b")')
    ran = run("kinst", "explore", "-k", str(kernel.path), *runs, "--schedule", "A40 B20 A B",
              "--record", str(path))
    assert ran.returncode == 0 and "This schedule does not fail" in ran.stdout
    traced = run("kdtrace", "--replay", str(path), "-qn",
                 'fbt::kern_*env:entry { printf("%d %s\\n", cpu, stringof(arg0)); }')
    assert traced.returncode == 0 and "ended in a different state" not in traced.stderr
    assert traced.stdout.split() == ["0", "a_b", "1", "a_b"]


# -- programs -------------------------------------------------------------------------------------

LOOK_THEN_MAKE = """
#include "system.h"
int
main(int argc, char **argv, char **environment)
{
	(void)argc, (void)environment;
	if (CALL3(SYS_open, argv[1], 0, 0) >= 0)
		return (1);
	return (CALL2(SYS_mkdir, argv[1], 0755) < 0 ? 2 : 0);
}
"""


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_check_then_act_race_is_found_with_one_preemption(kernel, cpus, tmp_path):
    source = tmp_path / "once.c"
    source.write_text(LOOK_THEN_MAKE)
    run_ = f"{source} /tmp/x"
    result = explore(kernel, run_, run_, cpus=cpus, races=False, preemptions=1, limit=4000)
    assert result.results == {(0, 1), (1, 0)}
    assert [(finding.kind, finding.preemptions) for finding in result.findings] == [("result", 1)]
    again = explore(kernel, run_, run_, cpus=cpus, schedule=result.findings[0].schedule)
    assert {"result"} <= {finding.kind for finding in again.findings}


@pytest.mark.parametrize("cpus", [1, 2])
def test_correct_programs_have_no_findings(kernel, cpus):
    result = explore(kernel, "$ mkdir /tmp/d/a", "$ rmdir /tmp/d", setup="$ mkdir /tmp/d",
                    check="$ ls /tmp", cpus=cpus, races=False, limit=150)
    assert result.findings == [] and result.results == {(0, 1), (1, 0)} and result.tried == 150


def test_three_programs_take_turns(kernel, tmp_path):
    programs = "$ echo 1", "$ cat /etc/motd", "$ ls /"
    result = explore(kernel, *programs, races=False, limit=20)
    assert result.findings == [] and result.tried == 20 and len(result.results) == 1
    words = [word for text in programs for word in ("--run", text)]
    traced = run("kdtrace", "-k", str(kernel.path), *words, "--schedule", "A5000 B5000 C A B",
                 "-o", str(tmp_path / "rows"), "-qn",
                 'syscall:::entry { printf("%d %s\\n", cpu, execname); }')
    assert traced.returncode == 0, traced.stderr
    rows = re.findall(r"^(\d) (echo|cat|ls)$", (tmp_path / "rows").read_text(), re.MULTILINE)
    assert {name for _cpu, name in rows} == {"echo", "cat", "ls"} and len(set(rows)) == 3
    # Each program has its own CPU; the first program resumes between turns of the others.
    turns = [cpu for cpu, _rows in itertools.groupby(cpu for cpu, _name in rows)]
    assert turns[0] == "0" and turns.count("0") > 1 and set(turns) == {"0", "1", "2"}
    assert dict(rows[::-1]) == {"0": "echo", "1": "cat", "2": "ls"}


@pytest.mark.parametrize("place", range(3))
def test_each_of_three_programs_has_a_separate_result(kernel, place):
    """On separate CPUs, programs may start in an order other than that of the ``--run`` options."""
    programs = ["$ echo 1", "$ ls /"]
    programs.insert(place, "$ false")
    result = explore(kernel, *programs, races=False, limit=6)
    assert result.results == {tuple(int(number == place) for number in range(3))}


@pytest.mark.parametrize("cpus", ["1", "2"])
def test_a_schedule_of_programs_is_recorded_and_traced(kernel, cpus, tmp_path):
    path, both = tmp_path / "order.rec", ("--run", "$ mkdir /tmp/a") * 2
    where = ("-k", str(kernel.path), *(("--cpus", "1") if cpus == "1" else ()))
    ran = run("kinst", "explore", *where, *both, "--no-races", "--schedule", "A5000 B A",
              "--record", str(path))
    assert ran.returncode == 0 and "This schedule does not fail" in ran.stdout, ran.stderr
    played = run("kinst", "replay", str(path))
    assert "the state matches the recording" in played.stdout
    probe = 'syscall::mkdir:entry { printf("%d %s %d\\n", cpu, execname, pid); }'
    traced = run("kdtrace", *where, *both, "--schedule", "A5000 B A", "-qn", probe)
    rows = [line.split() for line in traced.stdout.splitlines() if " mkdir " in line]
    # Which of them is first depends on the page faults before the system call.
    assert sorted(row[0] for row in rows) == (["0", "0"] if cpus == "1" else ["0", "1"])
    assert len({row[2] for row in rows}) == 2


def test_pairs_of_programs_with_common_memory_are_found_in_a_corpus(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.write_text("$ mkdir /tmp/a\n$ rmdir /tmp/a\nuifind(77)\n")
    ran = run("kinst", "explore", "-k", str(real_kernel("amd64").path), "--pairs", str(corpus),
              "--schedules", "10")
    assert "4 pairs of 3 calls access common memory; 4 were tried now" in ran.stdout


def test_programs_that_cannot_start_cause_a_one_line_error(kernel):
    for runs, message in ((("$ nothing", "$ ls /"), "program nothing not found;"),
                       (("$ ls | cat", "$ ls /"), "one program with its arguments"),
                       (("$ ls", "uifind(3)"), "give only one kind"),
                       (("/nowhere.c", "$ ls"), "no such file"),
                       (("$ ls", "$ ls", "--setup", "uifind(3)"), "--setup: must be a shell"),
                       (("$ ls", "$ ls", "--setup", "$ false"), "failed (status 1)"),
                       (("$ ls", "$ ls", "--probe", "strlen:0"), "--probe")):
        ran = run("kinst", "explore", "-k", str(kernel.path), "--run", runs[0], "--run", *runs[1:])
        assert ran.returncode == 1 and ran.stdout == "", runs
        assert message in ran.stderr and ran.stderr.count("\n") == 1, (runs, ran.stderr)


def test_a_kernel_without_types_causes_a_one_line_error(kernel, tmp_path):
    """The kernel is a copy in which the sections with type data are renamed."""
    bare = tmp_path / "kernel"
    bare.write_bytes(kernel.path.read_bytes().replace(b".debug_info\0", b".other_info\0")
                     .replace(b".SUNW_ctf\0", b".SUNW_xxx\0"))
    ran = run("kinst", "explore", "-k", str(bare), "--run", "uifind(1)", "--run", "uifind(1)")
    assert ran.returncode == 1 and ran.stdout == "" and ran.stderr.count("\n") == 1
    assert "has no DWARF or CTF types" in ran.stderr


# -- one CPU, and trampolines ----------------------------------------------------------------------

def test_two_registrations_of_a_hook_both_succeed_on_one_cpu_too(kernel):
    call = "hhook_head_register(9, 5, 0, 1)"
    result = explore(kernel, call, call, cpus=1)
    assert [(finding.kind, finding.preemptions) for finding in result.findings] == [("result", 1)]


@pytest.mark.parametrize("runs", [('kern_setenv("a_b", "1")', 'kern_unsetenv("a_b")'),
                                  ("uifind(77)", "uifind(77)"), ("if_alloc(6)", "if_alloc(6)")])
def test_correct_calls_have_no_findings_on_one_cpu(kernel, runs):
    result = explore(kernel, *runs, limit=400, cpus=1)
    assert result.findings == [] and result.tried > 10


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("trampolines", ["thread", "shared"])
def test_a_shared_trampoline_panics_and_per_thread_trampolines_do_not(trampolines, cpus):
    where = ("-k", str(real_kernel("amd64").path), "--run", 'strlen("abc")', "--run",
             'strlen("defgh")', "--probe", "strlen:0", "--probe", "strlen:1", "--no-races")
    ran = run("kinst", "explore", *where, "--trampolines", trampolines, "--cpus", str(cpus))
    if trampolines == "shared":
        assert ran.returncode == 1 and "1. panic" in ran.stdout and "(1 preemption)" in ran.stdout
    else:
        assert ran.returncode == 0 and "all others were executed" in ran.stdout
