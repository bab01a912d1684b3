"""Tests of gdb on recordings of FreeBSD: source lines, locals, threads, reverse execution."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from emu.elf.reader import PT_LOAD, ElfFile, read_file
from images import catalog
from tests.conftest import real_kernel

GDB = shutil.which("gdb-multiarch")
KINST = [sys.executable, "-m", "kinst_emu.commands.kinst"]
pytestmark = pytest.mark.skipif(GDB is None, reason="gdb-multiarch is not installed")


@pytest.fixture(scope="module")
def calls():
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def recording(arch, calls, name, call):
    path = calls / f"{name}-{arch}.rec"
    if not path.exists():
        subprocess.run([*KINST, "call", "-k", str(real_kernel(arch).path), call, "--record",
                        str(path)], capture_output=True, timeout=300)
    return path


def driven(arch, path, commands):
    """Run gdb commands on a recording; return a list of their outputs and gdb's standard error.

    The output of monitor commands is in standard error.
    """
    kernel = str(real_kernel(arch).path)
    with subprocess.Popen([*KINST, "replay", str(path), "-k", kernel, "--gdb", "0"],
                          stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        port = re.search(r":(\d+)'", line)[1]
        words = [GDB, "-nx", "-batch", "-iex", "set osabi none",
                 "-iex", "set remotetimeout 60", kernel, "-ex",
                 f"target remote 127.0.0.1:{port}", "-ex", "set pagination off"]
        for command in commands:
            words += ["-ex", f"echo \\n== {command.replace('*', '')}\\n", "-ex", command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert server.wait(60) == 0
    parts = re.split(r"^== .*$", done.stdout, flags=re.M)
    assert len(parts) == len(commands) + 1, done.stdout + done.stderr
    return [*(part.strip() for part in parts[1:]), done.stderr]


def test_gdb_shows_lines_locals_and_threads_and_runs_backwards_over_a_call(arch, calls):
    path = recording(arch, calls, "malloc", "malloc(100, &M_TEMP, 2)")
    output = driven(arch, path, [
        "break malloc", "continue", "info args", "print mtp->ks_shortdesc", "info threads",
        "break *uma_zalloc_arg", "continue", "backtrace 2", "finish", "reverse-finish",
        "delete", "continue", "monitor position"])
    assert re.search(r"Breakpoint 1, malloc \(size=100, mtp=0x\w+ <M_TEMP>, flags=2\) at "
                     r".*kern_malloc\.c:\d+", output[1])
    assert "size = 100" in output[2] and '"temp"' in output[3]
    assert "syncer" in output[4] and "running" in output[4]
    assert "uma_zalloc_arg (" in output[6]
    assert re.search(r"#1 .* in malloc .*kern_malloc\.c:\d+", output[7])
    assert "malloc" in output[8] and "Value returned" in output[8]
    assert "uma_zalloc_arg" in output[9]  # gdb is back at the function's first instruction
    assert "No more reverse-execution history" in output[11]
    assert "the state matches the recorded one" in output[-1]


def test_reverse_next_after_a_call_stops_in_the_called_function(arch, calls):
    path = recording(arch, calls, "malloc", "malloc(100, &M_TEMP, 2)")
    output = driven(arch, path, [
        "break *uma_zalloc_arg", "continue", "finish", "print $pc", "reverse-next",
        "print $pc", "backtrace 1"])
    # On amd64, gdb stops at the breakpoint; elsewhere, it stops at the start of a source line.
    assert "<malloc+" in output[3] and "<uma_zalloc_arg" in output[5]
    assert "uma_zalloc_arg (" in output[4]


# A call that traps and continues: fubyte() fetches a byte from an unmapped user address.
TRAP = "fubyte(4096)"
HANDLER = {"amd64": "trap", "arm64": "data_abort", "riscv64": "page_fault_handler"}
FETCH = {"amd64": "fubyte_nosmap", "arm64": "fubyte", "riscv64": "fubyte"}


def test_gdb_runs_backwards_over_a_trap(arch, calls):
    path = recording(arch, calls, "trap", TRAP)
    output = driven(arch, path, [
        f"break *{HANDLER[arch]}", "continue", "delete", f"break *{FETCH[arch]}",
        "reverse-continue", f"print $pc == (unsigned long){FETCH[arch]}", "delete",
        f"break *{HANDLER[arch]}", "continue", "delete", "continue", "monitor position"])
    assert HANDLER[arch] in output[1]
    assert "fubyte" in output[4] and output[5].endswith("= 1")
    assert HANDLER[arch] in output[8]
    assert "the state matches the recorded one" in output[-1]


def test_gdb_shows_the_threads_of_all_processes_and_the_memory_of_each(arch, calls):
    """While `check` runs, gdb reads the shell's code at an address where `check` has other code."""
    kernel, path = real_kernel(arch), calls / f"check-{arch}.rec"
    done = subprocess.run([*KINST, "record", "-q", "-k", str(kernel.path), "-o", str(path),
                           "$ check memory"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shell = program(catalog.userland(arch).with_name("shell"))
    check = program(catalog.userland(arch).with_name("check"))
    at = max(shell.segments[0].virtual, check.segments[0].virtual)
    at = next(a for a in range(at, at + 4096) if code(shell, a) != code(check, a))
    output = driven(arch, path, [
        "break sys_mmap", "continue", "info threads", f"x/8xb {at:#x}", "monitor process 1",
        "maintenance flush dcache", f"x/8xb {at:#x}", "monitor process", "monitor process 0",
        f"x/8xb {at:#x}", "monitor process 99999", "monitor process x"])
    for who in (r"check/check \(pid \d+\), running on CPU 0", r"init/init \(pid 1\)",
                r"kernel/swapper \(pid 0\)"):
        assert re.search(who, output[2]), output[2]
    assert shown(output[3]) == shown(output[9]) == code(check, at)
    assert shown(output[6]) == code(shell, at)
    assert "refer to init (pid 1)" in output[-1] and "the chosen process" in output[-1]
    assert "process 99999 does not exist" in output[-1] and "number of a process" in output[-1]


def program(path):
    return ElfFile(read_file(path))


def code(file, address):
    """Return eight bytes of a program's file at a virtual address."""
    segment = next(s for s in file.segments if s.kind == PT_LOAD
               and s.virtual <= address < s.virtual + s.in_file - 8)
    return bytes(file.piece(segment.offset + address - segment.virtual, 8))


def shown(text):
    return bytes(int(word, 16) for word in re.findall(r"\s0x([0-9a-f]{2})\b", text))
