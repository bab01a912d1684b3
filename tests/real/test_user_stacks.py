"""Tests of the stacks of programs that FreeBSD ships, and of programs built like these.

``KINST_STOPS`` sets the number of random moments of each test (default: 150).  The tests need a
base system next to the kernel; see ``test_base.py``.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile

import kinst_emu
from dtrace.d.language.options import Options
from dtrace.pipeline import Pipeline, linked
from dtrace.run.target import new_target
from dtrace.stacks.user_programs import ADDRESS, UserPrograms
from emu.elf.symbols import Symbol
from images import catalog
from images.build_userland import SOURCE, program_against
from images.compiler import target, tool
from images.guest_files import guest_files
from images.shell import program_files
from kinst.code.frame import FrameFollower
from kinst.probes.breakpoints import Breakpoints
from kinst.relocation.trap import TRAPS
from tests.conftest import ARCHES, real_kernel
from tests.dtrace.stacks.test_native_stacks import both_ways

GDB = shutil.which("gdb-multiarch")
KINST = [sys.executable, "-m", "kinst_emu.commands.kinst"]
STOPS = int(os.environ.get("KINST_STOPS", "150"))
SCRIPT = Path(__file__).with_name("gdb_stacks.py")
FRAMES = 64  # maximum number of frames that are compared
NAMES = {"amd64": "i386:x86-64", "arm64": "aarch64", "riscv64": "riscv:rv64"}  # gdb's
PROGRAMS = {"sh", "ls", "awk", "sed", "threads", "shapes"}
COMMAND = (
    r"""$ ls -l /bin | awk '{ s += $5; t[$9] = substr($9, 1, 2) }"""
    r""" END { for (x in t) s += length(t[x]); print s }';"""
    r""" for i in 1 2 3 4; do echo $i | sed s/1/2/; done; /files/threads; /files/shapes""")


@pytest.fixture(params=ARCHES, scope="module")
def arch(request):
    image = real_kernel(request.param)
    if catalog.headers(image) is None or not image.path.with_name(catalog.ROOT_FILE).is_file():
        pytest.skip(f"no base system for {request.param}: put the root.ufs and base of 'kinst "
                    f"images fetch RELEASE/ARCH --base' next to {image.path}")
    return request.param


@pytest.fixture(scope="module")
def folder(arch, tmp_path_factory):
    """Return a folder with the two programs."""
    made, system = tmp_path_factory.mktemp("files"), catalog.headers(real_kernel(arch))
    here = Path(__file__).parent
    program_against(arch, here / "threads.c", made / "threads", system, False)
    port, linker = target(SOURCE, arch), shutil.which(tool("ld.lld"))
    subprocess.run([
        tool("clang++"), f"--target={port.triple}", *port.flags, f"--sysroot={system}",
        "-stdlib=libc++", "-O2", "-fomit-frame-pointer", f"--ld-path={linker}",
        str(here / "shapes.cpp"), "-o", str(made / "shapes")], check=True)
    return made


class Process:
    """The process that runs at a moment of a recording.

    :ivar stack: its stack in words of ``UserPrograms``.
    :ivar objects: (path, bytes by which it was moved) of the files that it has mapped.
    """

    def __init__(self, guest):
        self.name, self.stack = guest._execname(), guest.stack(FRAMES, True)
        number, programs = self.stack[0] >> 48, guest.programs
        places = [(one.path, programs.place(number << 48 | one.start))
                  for one in guest.mapped(guest.thread)]
        self.objects = list(dict.fromkeys((path, place[1]) for path, place in places if place))


def processes(recording, seed):
    """Return the guest, and the processes at random positions at which a program is executed."""
    machine = recording.machine
    image = machine.emulated.image
    programs = UserPrograms(program_files(image), {}, guest_files(image),
                            machine.emulated.guest.programs.debug_file)
    goal = new_target(Breakpoints(machine.emulated), machine.kernel.prototypes.types(), False,
                      programs, lambda: "", stops=False)
    linked(Pipeline(Options(), goal, print), "BEGIN { trace(1); }", ["test"], lambda _row: None)
    first, last = recording.start.instructions, recording.end.instructions
    found, chooser = {}, random.Random(seed)
    for position in sorted(chooser.sample(range(first, last), 8 * STOPS)):
        recording.go(position)
        if not machine.pc >> 63:
            found[position] = Process(goal.guest)
    chosen = sorted(chooser.sample(list(found), min(STOPS, len(found))))
    return goal.guest, {position: found[position] for position in chosen}


class Files:
    """Copies of the guest's files, and what pyelftools says of them."""

    def __init__(self, image, folder):
        self._read, self._folder = guest_files(image), folder
        self._copies, self._described = {}, {}

    def copy(self, path):
        if path not in self._copies:
            self._copies[path] = self._folder / f"{len(self._copies)}-{Path(path).name}"
            self._copies[path].write_bytes(self._read(path))
        return str(self._copies[path])

    def described(self, path, address):
        """Return the range of the code that is described together with an address, or None."""
        if path not in self._described:
            with open(self.copy(path), "rb") as file:
                data = ELFFile(file).get_dwarf_info()
                entries = data.EH_CFI_entries() if data.has_EH_CFI() else []
                self._described[path] = [
                    (one["initial_location"], one["initial_location"] + one["address_range"])
                    for one in entries if isinstance(one, FDE)]
        return next(((low, high) for low, high in self._described[path] if low <= address < high),
                    None)


def theirs(recorded, rows, arch, folder):
    """Return gdb's stacks at the positions of rows; see ``gdb_stacks.py``."""
    (folder / "positions").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with subprocess.Popen([*KINST, "replay", str(recorded), "--gdb", "0"],
                          stderr=subprocess.PIPE, text=True) as server:
        port = re.search(r":(\d+)'", server.stderr.readline())[1]
        done = subprocess.run(
            [GDB, "-nx", "-batch", "-iex", "set osabi none", "-iex", "set remotetimeout 60", "-iex",
             f"set architecture {NAMES[arch]}", "-ex", f"target remote 127.0.0.1:{port}", "-x",
             str(SCRIPT)], capture_output=True, text=True, timeout=1500, check=False,
            env=os.environ | {"POSITIONS": str(folder / "positions"), "FRAMES": str(FRAMES),
                              "RESULTS": str(folder / "results")})
        try:
            assert server.wait(60) == 0, done.stderr
        finally:
            server.kill()  # otherwise a failure would wait for ever
    found = [json.loads(row) for row in (folder / "results").read_text().splitlines()]
    assert len(found) == len(rows), done.stderr
    return found


def known_frames(guest, files, stack):
    """Return how many frames, innermost first, call frame information describes."""
    known = 0
    for word in stack:
        place = guest.programs.place(word)
        if place is None or not files.described(
                str(place[0].path), (word & ADDRESS) - place[1] - (known > 0)):
            break
        known += 1
    return known


def at_edge(guest, files, arch, word):
    """Return whether an instruction belongs to a prologue or epilogue.

    On riscv64, clang describes no epilogues, and the dynamic linker's assembly code not how its
    prologue lowers the stack pointer, so gdb is wrong there.
    """
    place = guest.programs.place(word)
    if place is None:
        return False
    file, address = place[0], (word & ADDRESS) - place[1]
    function = file.symbols.function_at(address)
    described = files.described(str(file.path), address)
    if function is None and described is not None:
        function = Symbol("", described[0], described[1] - described[0], 0)

    def code(at, size):
        return file.code(Symbol("", at, min(size, function.address + function.size - at), 0))

    follower = FrameFollower(guest._machine.arch, TRAPS[arch], code, lambda _address: True)
    return function is not None and any(
        follow(function, address) is not None
        for follow in (follower.in_epilogue, follower.in_prologue))


@pytest.mark.skipif(GDB is None, reason="gdb-multiarch is not installed")
def test_user_stacks_at_random_moments_equal_those_of_gdb(arch, folder, tmp_path):
    """gdb must follow call frame information: its guesses for other code are often wrong.

    FreeBSD's dynamic linker has none, for example.
    """
    recorded = tmp_path / "programs.rec"
    subprocess.run([*KINST, "record", "-k", str(real_kernel(arch).path), "--base", "-q", "--files",
                    str(folder), COMMAND, "-o", str(recorded)], check=True)
    recording = kinst_emu.Recording(recorded)
    guest, stops = processes(recording, 59)
    files = Files(recording.machine.emulated.image, tmp_path)
    order = sorted(stops, key=lambda one: (str(stops[one].objects), one))
    rows = [(one, [(files.copy(path), moved) for path, moved in stops[one].objects])
            for one in order]
    counts, names = Counter(), Counter()
    for position, (found, same) in zip(order, theirs(recorded, rows, arch, tmp_path), strict=True):
        process = stops[position]
        names[process.name] += 1
        known = known_frames(guest, files, process.stack)
        mine = [word & ADDRESS for word in process.stack]
        found = found[: found.index(0)] if 0 in found else found  # gdb follows a return to 0
        counts["frames"] += len(mine)
        if known < len(mine):
            counts["partly proven"] += 1
            mine, found = mine[: known + 1], found[: known + 1]
        counts["proven frames"] += len(mine) - 1
        if mine == found:
            counts["equal"] += 1
        elif same and len(found) < known and mine[: len(found)] == found:
            counts["gdb stops early"] += 1
        elif arch != "amd64" and at_edge(guest, files, arch, process.stack[0]):
            counts["in a prologue or epilogue"] += 1
        else:
            counts["different"] += 1
            print(position, process.name, [guest.programs.line(one) for one in process.stack],
                  [hex(one) for one in found])
    print(arch, len(stops), dict(counts), dict(names))
    assert len(stops) == STOPS and not counts["different"], counts
    assert counts["in a prologue or epilogue"] <= STOPS // 20 and counts["proven frames"] > STOPS
    assert STOPS < 150 or names.keys() >= PROGRAMS


D = """
syscall:::entry /execname != "kernel" && n++ % 3 == 0/ {
    @[execname, ustack(50), ustackdepth, ucaller] = count(); }
profile:::profile-1987 { @profile[execname, ustack(50), ustackdepth] = count(); }
fbt::vm_fault_trap:entry /m++ % 7 == 0/ {
    @trap[ustack(50)] = count(); }
pid$target:a.out::entry { @function[ustack(50), ucaller] = count(); }
pid$target:libc.so.7:qsort: { @inside[ustack(50), ustackdepth] = count(); }
pid$target:libc.so.7:qsort:return { @back[ustack(50)] = count(); }
"""


def test_native_user_stacks_of_the_base_system_match_python(arch, folder, monkeypatch):
    native, slow = both_ways(
        monkeypatch, "-q", "-k", str(real_kernel(arch).path), "--base", "--files", str(folder),
        "-n", D, "-c", "$ /files/threads; ls / | wc; /files/shapes > /dev/null")
    assert native == slow
    status, out, _said = native
    assert status == 0 and len(out.splitlines()) > 500
    assert "threads`<signal handler called>" in out and "libc.so.7`qsort" in out
    stacks = out.split("\n\n")
    handled = [one for one in stacks if "<signal handler called>" in one]
    assert all("threads`handler" in one or "libthr" in one for one in handled)
    assert any("threads`work" in one.partition("<signal handler called>")[2] for one in handled)
