"""gdb on recordings of FreeBSD: source lines, locals, backwards over a call and over a trap."""

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
    """What gdb says to commands on a recording; what monitor commands say comes last."""
    kernel = str(real_kernel(arch).path)
    with subprocess.Popen([*KINST, "replay", str(path), "-k", kernel, "--gdb", "0"],
                          stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        port = re.search(r":(\d+)'", line)[1]
        words = [GDB, "-nx", "-batch", "-iex", "set osabi none", kernel, "-ex",
                 f"target remote 127.0.0.1:{port}", "-ex", "set pagination off"]
        for command in commands:
            words += ["-ex", f"echo \\n== {command.replace('*', '')}\\n", "-ex", command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert server.wait(60) == 0
    parts = re.split(r"^== .*$", done.stdout, flags=re.M)
    assert len(parts) == len(commands) + 1, done.stdout + done.stderr
    return [*(part.strip() for part in parts[1:]), done.stderr]


def test_source_lines_locals_threads_and_backwards_over_a_call(arch, calls):
    path = recording(arch, calls, "malloc", "malloc(100, &M_TEMP, 2)")
    said = driven(arch, path, [
        "break malloc", "continue", "info args", "print mtp->ks_shortdesc", "info threads",
        "break *uma_zalloc_arg", "continue", "backtrace 2", "finish", "reverse-finish",
        "delete", "continue", "monitor position"])
    assert re.search(r"Breakpoint 1, malloc \(size=100, mtp=0x\w+ <M_TEMP>, flags=2\) at "
                     r".*kern_malloc\.c:\d+", said[1])
    assert "size = 100" in said[2] and '"temp"' in said[3]
    assert "syncer" in said[4] and "running" in said[4]
    assert "uma_zalloc_arg (" in said[6]
    assert re.search(r"#1 .* in malloc .*kern_malloc\.c:\d+", said[7])
    assert "malloc" in said[8] and "Value returned" in said[8]
    assert "uma_zalloc_arg" in said[9]  # at its beginning again
    assert "No more reverse-execution history" in said[11]
    assert "the state matches the recorded one" in said[-1]


def test_backwards_by_a_line_behind_a_call_comes_to_what_was_called(arch, calls):
    path = recording(arch, calls, "malloc", "malloc(100, &M_TEMP, 2)")
    said = driven(arch, path, [
        "break *uma_zalloc_arg", "continue", "finish", "print $pc", "reverse-next",
        "print $pc", "backtrace 1"])
    # On amd64 to the breakpoint at its begin, on the others to a line in the midst of it.
    assert "<malloc+" in said[3] and "<uma_zalloc_arg" in said[5]
    assert "uma_zalloc_arg (" in said[4]


# A call that traps, and lives: a byte is fetched from an address of the user's that is not mapped.
TRAP = "fubyte(4096)"
HANDLER = {"amd64": "trap", "arm64": "data_abort", "riscv64": "page_fault_handler"}
FETCH = {"amd64": "fubyte_nosmap", "arm64": "fubyte", "riscv64": "fubyte"}


def test_backwards_over_a_trap(arch, calls):
    path = recording(arch, calls, "trap", TRAP)
    said = driven(arch, path, [
        f"break *{HANDLER[arch]}", "continue", "delete", f"break *{FETCH[arch]}",
        "reverse-continue", f"print $pc == (unsigned long){FETCH[arch]}", "delete",
        f"break *{HANDLER[arch]}", "continue", "delete", "continue", "monitor position"])
    assert HANDLER[arch] in said[1]
    assert "fubyte" in said[4] and said[5].endswith("= 1")
    assert HANDLER[arch] in said[8]
    assert "the state matches the recorded one" in said[-1]


def test_the_threads_of_all_processes_and_the_memory_of_each(arch, calls):
    """While `check` runs, the shell's memory is read, where `check` has other code in its own."""
    kernel, path = real_kernel(arch), calls / f"check-{arch}.rec"
    done = subprocess.run([*KINST, "record", "-q", "-k", str(kernel.path), "-o", str(path),
                           "$ check memory"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shell = program(catalog.userland(arch).with_name("shell"))
    check = program(catalog.userland(arch).with_name("check"))
    at = max(shell.segments[0].virtual, check.segments[0].virtual)
    at = next(a for a in range(at, at + 4096) if code(shell, a) != code(check, a))
    said = driven(arch, path, [
        "break sys_mmap", "continue", "info threads", f"x/8xb {at:#x}", "monitor process 1",
        "maintenance flush dcache", f"x/8xb {at:#x}", "monitor process", "monitor process 0",
        f"x/8xb {at:#x}", "monitor process 99999", "monitor process x"])
    for who in (r"check/check \(pid \d+\), running on CPU 0", r"init/init \(pid 1\)",
                r"kernel/swapper \(pid 0\)"):
        assert re.search(who, said[2]), said[2]
    assert shown(said[3]) == shown(said[9]) == code(check, at)
    assert shown(said[6]) == code(shell, at)
    assert "refer to init (pid 1)" in said[-1] and "the chosen process" in said[-1]
    assert "no process 99999" in said[-1] and "number of a process" in said[-1]


def program(path):
    return ElfFile(read_file(path))


def code(file, address):
    """Eight bytes of a program's file, by their address."""
    one = next(s for s in file.segments if s.kind == PT_LOAD
               and s.virtual <= address < s.virtual + s.in_file - 8)
    return bytes(file.piece(one.offset + address - one.virtual, 8))


def shown(text):
    return bytes(int(word, 16) for word in re.findall(r"\s0x([0-9a-f]{2})\b", text))
