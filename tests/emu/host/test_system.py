"""Tests of the services of the host's system, by calls of Linux and by those of POSIX systems."""

import ctypes
import mmap
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.host import linux, portable
from emu.host.mappings import extents, map_private

PAGE, PAGES = 4096, 300
SIZE = PAGE * PAGES
BOTH = pytest.mark.parametrize("system", [linux, portable], ids=["linux", "portable"])


def mapped(file, at):
    """Return an object that keeps a private mapping of a file, and the mapping's address."""
    area = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    if file >= 0:
        map_private(address, SIZE, file, at)
    return area, address


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 255)), max_size=20),
       st.booleans())
def test_both_find_the_pages_that_were_changed_and_undo_the_changes(writes, of_file):
    for system in (linux, portable):
        file = system.memory_file("kinst-test") if of_file else -1
        at = SIZE if of_file else 0
        if of_file:
            os.ftruncate(file, 2 * SIZE)
            os.pwrite(file, b"saved" * 1000, SIZE + 3 * PAGE)
        area, address = mapped(file, at)
        # Reading a page of zeros maps it, which Linux does not tell from writing to it.
        before = os.pread(file, SIZE, at) if of_file else bytes(SIZE)
        expected = {at // PAGE for at, _value in writes}
        for where, value in writes:
            area[where] = value ^ before[where]
        flags = system.changed(address, SIZE, file, at)
        assert len(flags) == PAGES
        assert {page for page, flag in enumerate(flags) if flag} == expected
        for page in (*expected, 0):
            assert system.changed(address + page * PAGE, PAGE, file, at + page * PAGE
                                  ) == bytes([page in expected])
        system.discard(address, SIZE, file, at)
        assert not any(system.changed(address, SIZE, file, at)) and bytes(area) == before
        if of_file:
            os.close(file)


@BOTH
def test_a_released_part_of_a_file_is_zero_again_and_others_stay(system):
    file = system.memory_file("kinst-test")
    os.ftruncate(file, 3 * SIZE)
    part = b"b" * 5000 + bytes(SIZE - 10_000) + b"b" * 5000
    os.pwrite(file, b"a" * SIZE + part + b"c" * SIZE, 0)
    assert system.release(file, SIZE, SIZE)
    content = os.pread(file, 3 * SIZE, 0)
    assert content[:SIZE] == b"a" * SIZE and not any(content[SIZE : 2 * SIZE])
    assert content[2 * SIZE :] == b"c" * SIZE
    used = os.fstat(file).st_blocks
    system.release(file, SIZE, SIZE)
    assert os.fstat(file).st_blocks == used
    os.close(file)
    assert not list(extents(system.memory_file("kinst-test"), 0, SIZE))


@BOTH
def test_the_parent_of_a_process_is_known(system):
    if system is portable and shutil.which("ps") is None:
        pytest.skip("ps is not installed: apt-get install procps")
    assert system.parent_of(os.getpid()) == os.getppid()
    assert system.parent_of(2**31 - 2) == 0


@BOTH
def test_a_process_ends_with_its_parent(system, tmp_path):
    """The middle process starts another one and ends; the other one holds the pipe open."""
    name = system.__name__
    inner = (f"import os, sys, time; from {name} import end_with; end_with(int(sys.argv[1]));"
             "print('watching', flush=True); time.sleep(60)")
    middle = ("import os, subprocess, sys;"
              f"p = subprocess.Popen([sys.executable, '-c', {inner!r}, str(os.getpid())],"
              "stdout=subprocess.PIPE); p.stdout.readline()")
    done = subprocess.run([sys.executable, "-c", middle], timeout=30, check=True,
                          stderr=subprocess.PIPE)
    assert not done.stderr  # end of file: nobody has the pipe any more


def digests(host):
    """Boot a kernel, save two states, go back twice; return the digests, by a new process."""
    program = """
import kinst_emu
machine = kinst_emu.open("teaching/riscv64").boot("64M")
first = machine.keep(); print(machine.digest())
for _ in range(3):
    machine.run(instructions=40_000); second = machine.keep(); print(machine.digest())
machine.run(instructions=1000)
machine.restore(second); print(machine.digest())
machine.run(instructions=1000); print(machine.digest())
machine.restore(first); print(machine.digest())
from emu.host import system
print(system.system.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=100, check=False, env=os.environ | {"KINST_HOST": host})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_machine_does_the_same_with_either():
    *with_linux, first = digests("")
    *without, second = digests("portable")
    assert (first, second) == ("emu.host.linux", "emu.host.portable")
    assert with_linux == without and len(set(with_linux)) == 5 and len(with_linux) == 7


def test_the_tests_of_memory_pass_without_what_only_linux_has():
    """One test is left out: no memory of the host is freed, but it is used again."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", "-p", "no:xdist",
         "tests/emu/unicorn/test_host_memory.py", "--deselect",
         "tests/emu/unicorn/test_host_memory.py::"
         "test_states_share_one_descriptor_and_free_their_memory"],
        capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"KINST_HOST": "portable"})
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout
