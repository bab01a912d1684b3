"""Tests that D's subroutines for locks agree with the kernel's own functions."""

import json
from collections import Counter

import pytest

from dtrace.debug.kernel_types import kernel_types
from dtrace.run.locks import Locks
from dwarf.members import offset_of
from emu.machine.call import Caller
from emu.machine.machine import Until
from images import boots
from images.recordings import played
from images.shell import with_userland
from tests.browser import CHROMIUM, Shown
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

PROGRAM = """
    fbt::sched_add:entry {
        this->lock = (struct mtx *)((struct thread *)arg0)->td_lock;
        @[mutex_owned(this->lock), mutex_owner(this->lock) == curthread,
          mutex_type_spin(this->lock), mutex_type_adaptive(this->lock)] = count(); }
    fbt::proc_reparent:entry, fbt::fork1:entry {
        this->tree = (struct sx *)&`proctree_lock;
        @tree[probefunc, sx_exclusive_held(this->tree), sx_isexclusive(this->tree),
              sx_shared_held(this->tree)] = count(); }
    BEGIN { trace(mutex_owned((struct mtx *)0)); }
    END { printa("sched %d %d %d %d %@d\\n", @); printa("%s %d %d %d %@d\\n", @tree); }
"""
# Locks of each class: the member with the lock word, and the kernel function that reads the owner.
LOCKS = {"proctree_lock": ("sx_lock", "owner_sx"), "Giant": ("mtx_lock", "owner_mtx"),
         "blocked_lock": ("mtx_lock", "owner_mtx"), "uma_rwlock": ("rw_lock", "owner_rw"),
         "in_ifaddr_lock": ("rw_lock", "owner_rw")}
STRUCTURES = {"sx_lock": "struct sx", "mtx_lock": "struct mtx", "rw_lock": "struct rwlock"}


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


def test_a_threads_lock_is_an_owned_spin_mutex_and_proctree_is_locked_for_changes(kernel):
    ran = run("kdtrace", "-k", str(kernel.path), "-qn", PROGRAM, "-c", "$ cat /etc/motd | wc")
    assert ran.returncode == 0, ran.stderr
    assert "invalid address (0x" in ran.stderr, "no lock is at 0"
    rows = [row.split() for row in ran.stdout.splitlines() if row.count(" ") >= 4]
    scheduled = [row for row in rows if row[0] == "sched"]
    assert [row[1:5] for row in scheduled] == [["1", "1", "1", "0"]]
    assert [row[1:4] for row in rows if row[0] == "proc_reparent"] in ([["1", "1", "0"]], [])
    assert [row[1:4] for row in rows if row[0] == "fork1"] == [["0", "0", "0"]]


def test_lock_owners_match_those_that_the_kernels_functions_return(kernel):
    """The lock words are those of free locks, owned locks with each flag, and shared locks."""
    machine, types = boots.booted(kernel), kernel_types(kernel)
    thread = machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))
    locks = Locks(types, machine.guest.threads.locks, lambda address, size: int.from_bytes(
        machine.read(address, size), "little"))
    kept, seen = machine.snapshot(), set()
    for name, (word, function) in LOCKS.items():
        lock, own = machine.image.symbols.find(name), machine.image.symbols.find(function)
        if lock is None or own is None:
            continue
        at = lock.address + offset_of(types, STRUCTURES[word], word)
        shared = [] if word == "mtx_lock" else [1, 33, 65, 32 * 1000 + 1, 3, 35, 9]
        for value in (0, thread, *(thread | 1 << bit for bit in range(3)), *shared,
                      machine.read_u64(at)):
            if word != "mtx_lock" and value == thread | 1:
                continue  # locks of other classes cannot be owned and shared at once
            machine.write_u64(at, value)
            state = locks.state(lock.address)
            area = machine.sp - 4096 & ~15
            machine.write_u64(area, 0)
            is_held = Caller(machine).call(own.address, [lock.address, area], function) & 0xFFFFFFFF
            owner = machine.read_u64(area)
            machine.restore(kept)
            assert (state.held, state.owner) == (bool(is_held), owner), (name, hex(value))
            seen.add((word, state.held, bool(state.owner)))
    assert {("mtx_lock", True, True), ("mtx_lock", False, False), ("sx_lock", True, True),
            ("sx_lock", True, False), ("sx_lock", False, False)} <= seen


def shown(kernel, *words):
    ran = run("kinst", "locks", "-k", str(kernel.path), "--json", *words)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout[ran.stdout.index("{"):])


def test_the_locks_of_fork_are_those_that_fork1_takes(kernel):
    found = shown(kernel, "$ cat /etc/motd", "--of", "fork")
    rows = [row for row in found["locks"] if row["acquired"] is not None]
    kinds = {row["kind"] for row in rows}
    assert {"mutex", "sx"} <= kinds and len(rows) > 20, kinds
    tree = [row for row in rows if row["name"] == "killpg racer"]
    assert len(tree) == 1 and "fork1 " in tree[0]["where"], tree
    assert tree[0]["held"] > 1000
    assert all(row["held"] >= 0 for row in rows)
    assert any(row["within"] for row in rows)
    assert not [row for row in rows if row["address"] is None or row["where"].endswith(" ?")]


def test_every_lock_that_witness_sees_is_found(kernel, tmp_path):
    """Not counted: recursive acquisitions, which WITNESS also sees, and spin mutexes."""
    if kernel.symbols.find("witness_lock") is None:
        pytest.skip(f"{kernel.path} has no WITNESS; use GENERIC-DEBUG")
    path = tmp_path / "ls.rec"
    assert run("kinst", "record", "-k", str(kernel.path), "$ ls -l /", "-o", str(path)
               ).returncode == 0
    player = played(path, None, 10**10, ())
    machine = player.machine
    flags = offset_of(kernel_types(kernel), "struct lock_object", "lo_flags")
    entry, seen, held = machine.symbol("witness_lock").address, Counter(), Counter()
    assert player.seek(player.recording.start.position) is None
    player.give()
    while player.run(Until(addresses=[entry])) is not None:
        lock = machine.read_register(machine.arch.arguments[0])
        kind = int.from_bytes(machine.read(lock + flags, 4), "little") >> 24 & 15
        seen[machine.guest.threads.locks.kinds[kind].name,
             machine.read_string(machine.read_u64(lock), 64).decode()] += 1
    found = json.loads(run("kinst", "locks", str(path), "--json").stdout)
    for row in found["locks"]:
        if row["acquired"] is not None and not row["changed"]:
            held[row["kind"], row["name"]] += 1
    # WITNESS skips spin mutexes, and epochs and rm locks are of another kind.
    wrong = {key: (seen[key], held[key]) for key in seen.keys() | held.keys()
             if seen[key] != held[key] and key[0] in ("mutex", "sx", "rw", "lockmgr")}
    assert sum(abs(one - other) for one, other in wrong.values()) <= 2, wrong
    assert sum(seen.values()) > 1000


@pytest.mark.parametrize("arch", ARCHES)
def test_the_page_has_the_acquisitions_of_the_recording(arch, tmp_path):
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    recording, file = tmp_path / "cat.rec", tmp_path / "locks.html"
    kernel = str(real_kernel(arch).path)
    assert run("kinst", "record", "-k", kernel, "-q", "$ cat /etc/motd", "-o", str(recording)
               ).returncode == 0
    wanted = json.loads(run("kinst", "locks", str(recording), "--json").stdout)["locks"]
    done = run("kinst", "locks", str(recording), "--html", str(file))
    assert done.returncode == 0, done.stderr
    with Shown(file, 1280) as shown:
        shown.wait_for("view.ready")
        rows = shown.value("view.rows.map(one => [one.name, one.address, one.held, one.waited, "
                           "one.position, one.where])")
    assert len(rows) == len(wanted) > 500
    assert Counter(map(tuple, rows)) == Counter(
        (f"{one['kind']} {one['name']}".strip(), f"{one['address']:#x}", one["held"],
         one["waited"], -1 if one["acquired"] is None else one["acquired"], one["where"])
        for one in wanted)
