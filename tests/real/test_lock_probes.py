"""Tests that lockstat's probes fire for every lock, also where inline code acquires it at once.

Two judges: ``kinst locks``, which follows the stores to the words of locks, and WITNESS.
"""

import json
from collections import Counter

import pytest

from dtrace.debug.kernel_types import kernel_types
from emu.elf.image import load_image
from images import boots, catalog
from images.shell import run_command, with_userland
from kinst.code.reader import new_reader
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.lock_swaps import LockSwaps
from kinst.relocation.trap import trap_of
from kinst.relocation.verdict import Op
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

COMMAND = "mkdir /tmp/a; ls -l / | wc; cat /etc/motd; echo x > /tmp/y; cat /tmp/y | wc"
KINDS = {"spin mutex": "spin", "mutex": "adaptive", "rw": "rw", "sx": "sx", "lockmgr": "lockmgr"}
EVENTS = [f"{kind}-{event}" for kind in KINDS.values() for event in ("acquire", "release")]
WATCH = "lockstat:::*-acquire, lockstat:::*-release"


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


def test_each_acquisition_and_release_that_kinst_locks_finds_fires_a_probe(kernel, tmp_path):
    """Not compared: upgrades and downgrades, which have probes of their own."""
    recording = tmp_path / "run.rec"
    done = run("kinst", "record", "-k", str(kernel.path), f"$ {COMMAND}", "-o", str(recording))
    assert done.returncode == 0, done.stderr
    done = run("kdtrace", "--replay", str(recording), "-q", "-x", "bufsize=64m", "-n",
               WATCH + ' { printf("%s %x %d\\n", probename, arg0, arg1); }')
    assert done.returncode == 0, done.stderr
    fired = Counter[tuple[str, int]]()
    for row in map(str.split, done.stdout.splitlines()):
        if len(row) != 3 or row[0] not in EVENTS:
            continue  # printed by the guest
        name, lock, shared = row
        fired[name, int(lock, 16)] += 1
        assert shared in ("0", "1") if name[:2] in ("rw", "sx", "lo") else shared == "0"
    done = run("kinst", "locks", str(recording), "--json")
    wanted = Counter[tuple[str, int]]()
    rows = [row for row in json.loads(done.stdout)["locks"] if row["kind"] in KINDS]
    changed = {(row["address"], row["acquired"]) for row in rows if row["changed"]}
    for row in rows:
        for end, event in (("acquired", "acquire"), ("released", "release")):
            if row[end] is not None and (row["address"], row[end]) not in changed:
                wanted[f"{KINDS[row['kind']]}-{event}", row["address"]] += 1
    # The addresses of some locks are unknown to kinst locks.
    unknown = Counter({name: wanted.pop((name, 0), 0) for name in EVENTS})
    for (name, lock), count in list(fired.items()):
        if (name, lock) not in wanted:
            unknown[name] -= count
            del fired[name, lock]
    assert fired == wanted
    assert not any(unknown.values()), unknown
    assert all(sum(n for (name, _lock), n in fired.items() if name == event) > 20
               for event in EVENTS)


def test_a_probe_that_bypasses_its_tracepoints_is_no_position(kernel, tmp_path):
    recording = tmp_path / "run.rec"
    assert run("kinst", "record", "-k", str(kernel.path), "$ ls /", "-o", str(recording)
               ).returncode == 0
    for probe in ("lockstat:::adaptive-acquire", "vfs:vop:vop_lookup:entry"):
        done = run("kinst", "replay", str(recording), "--to", probe)
        assert done.returncode == 1 and done.stderr == (
            f"kinst: {probe}: not a usable position, because this probe also fires where the "
            "kernel passes no tracepoint; 'kdtrace --replay' prints when it fires\n")


def test_locks_that_modules_acquire_are_seen_or_reported(kernel):
    base = load_image(kernel.path)
    modules = [base.path.with_name(f"{name}.ko") for name in ("opensolaris", "dtrace")]
    if not all(path.exists() for path in modules):
        pytest.skip(f"{base.path.parent} has no opensolaris.ko and dtrace.ko")
    image = catalog.with_modules(base, modules)
    breakpoints = Breakpoints(boots.booted(image))
    index = next(n for n, one in enumerate(breakpoints.declared) if one.name == "sx-acquire")
    breakpoints.add_static(index, lambda: kernel_types(image))
    # GENERIC-DEBUG's modules inline no locks.
    assert any("dtrace.ko" in text for text in breakpoints.incomplete(index)) == (
        breakpoints.arch.name != "amd64" and kernel.symbols.find("witness_lock") is None)


@pytest.mark.parametrize("path", PATHS)
def test_probes_of_locks_leave_no_trace(kernel, path):
    machine = boots.booted(kernel)
    status = run_command(machine, "mkdir /tmp/x", 10**10)
    untraced = machine.digest()
    machine = boots.booted(kernel)
    breakpoints = Breakpoints(machine, path=path)
    numbers = [breakpoints.add_static(n, lambda: kernel_types(kernel))
               for n, one in enumerate(breakpoints.declared) if one.provider == "lockstat"]
    breakpoints.enable()
    assert run_command(machine, "mkdir /tmp/x", 10**10) == status
    breakpoints.disable()
    assert machine.digest() == untraced
    counts = {breakpoints.names(n)[3]: breakpoints.dispatcher.probe(n)[4] for n in numbers}
    assert min(counts[event] for event in EVENTS) > 10, counts


def test_as_many_locks_are_acquired_and_released_as_witness_sees(kernel):
    if kernel.symbols.find("witness_lock") is None:
        pytest.skip(f"{kernel.path} has no WITNESS; use GENERIC-DEBUG")
    # Recursive acquisitions, which lo_data counts, are not reported by lockstat.
    done = run("kdtrace", "-k", str(kernel.path), "-qn", f"""
        {WATCH} {{ @fired[probename] = count(); }}
        fbt::witness_lock:entry, fbt::witness_unlock:entry
        / ((struct lock_object *)arg0)->lo_data == 0 /
        {{ @seen[probefunc, ((struct lock_object *)arg0)->lo_flags >> 24 & 15] = count(); }}
        END {{ printa("%s %@d\\n", @fired); printa("%s-%d %@d\\n", @seen); }}""",
        "-c", f"$ {COMMAND}")
    assert done.returncode == 0, done.stderr
    counts = {row[0]: int(row[1]) for line in done.stdout.splitlines()
              if len(row := line.split()) == 2 and "-" in row[0] and row[1].isdecimal()}
    for number, kind in enumerate(["spin", "adaptive", "sx", "", "", "rw", "lockmgr"]):
        for function, event in (("lock", "acquire"), ("unlock", "release")):
            if kind:
                assert counts[f"{kind}-{event}"] == counts[f"witness_{function}-{number}"] > 100


def test_every_function_that_may_wait_for_a_lock_has_a_swap_of_this_lock(kernel):
    if kernel.symbols.find("witness_lock") is not None:
        pytest.skip("GENERIC-DEBUG inlines no locks, and always calls some of the functions")
    machine = boots.booted(kernel)
    locks, symbols = machine.guest.probes.locks, machine.image.symbols
    trap = trap_of(machine.guest, machine.arch.name)
    reader, _templates = new_reader(machine.arch, trap, machine.guest.traps.trap_frame)
    finder = LockSwaps(machine.arch, trap, machine.image, locks, reader.step, reader.lengths)
    paths = {symbol.address: path.function for path in locks.paths
             if (symbol := symbols.find(path.function)) is not None}
    missing, calls = [], 0
    for segment in machine.image.segments:
        if not segment.executable:
            continue
        text = machine.read(segment.virtual, min(segment.memory_size, len(segment.data)))
        swapped = {(symbols.function_at(one.swap.after).address, one.path.function)
                   for one in finder.found(text, segment.virtual, {})}
        for function in symbols.functions():
            start = function.address - segment.virtual
            code = text[start : start + function.size] if start >= 0 else b""
            at = before = 0
            for length in reader.lengths(code):
                _n, op, target, _a, b, extra, _returns, _calls = reader.step(
                    code[at : at + 16], function.address + at)
                if op == Op.LINK and b < 32:  # a far call of riscv64
                    target = before + extra & (1 << 64) - 2
                before = target
                at += length
                if op in (Op.LINK, Op.CALL, Op.JUMP) and target in paths:
                    calls += 1
                    if (function.address, paths[target]) not in swapped:
                        missing.append((function.name, paths[target]))
    assert calls > 1000
    assert not missing
