"""Tests that calls from Python into native code succeed or raise an error, but never crash."""

import inspect
import json
import subprocess
import sys

import pytest
import unicorn
import unicorn.riscv_const as riscv

from emu.arch.architectures import ARCHITECTURES
from emu.guests.registry import FREEBSD
from emu.machine.call import Caller
from emu.unicorn import _engine
from emu.unicorn.wired_machine import library_symbols
from kinst.code._reader import CodeReader
from kinst.code.reader import new_reader
from kinst.probes._dispatch import Dispatcher
from kinst.probes.breakpoints import DIRECT, PATHS, Breakpoints
from kinst.probes.dispatcher import new_dispatcher
from kinst.providers import kinst_provider
from kinst.relocation.shape import register_names
from kinst.relocation.trap import TRAPS
from tests.conftest import ARCHES

ODD = [0, 1, -1, 7, 255, 256, 4096, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 63) - 1,
       (1 << 64) - 1, 1 << 64, None, "x", b"", b"\x90" * 16, [], object()]

# In a new process, each test calls the public methods of the native classes with arbitrary
# arguments: on an object without a machine, on one with a machine, or inside a firing.  A crash
# ends the process; exceptions are counted.
CALLER = r"""
import random, sys
sys.path.insert(0, {root!r})
from tests.kinst.probes.test_native_safety import hammer
hammer({arch!r}, {where!r}, {seed})
print("alive")
"""
# Methods that the tests do not call, with the reason.
LEFT_OUT = {
    "run": "runs for ever from an odd address; called from inside a run below",
}
# Methods that are not called inside a firing, because the machine must be able to continue.
ENDLESS = {
    name: "the clock would stop for ever, or the guest would continue somewhere else"
    for name in ("freeze", "thaw", "thaw_at", "thaw_if_at", "use_trampoline", "abandon", "settle",
                 "set_flat", "set_page_walk", "write", "write_bytes", "write_system", "write_msr",
                 "set_interrupt_mask", "set_interrupt_gate", "set_breakpoint_exception",
                 "set_last_address", "defer", "wipe", "learn", "learn_end", "set")
}


def methods(thing):
    return sorted(name for name, value in inspect.getmembers(type(thing))
                  if not name.startswith("__") and callable(value) and name not in LEFT_OUT)


def arguments(rng, count):
    return [rng.choice(ODD) for _ in range(count)]


def shake(things, rng, rounds, but=()):
    raised = 0
    for _ in range(rounds):
        thing = rng.choice(things)
        name = rng.choice([name for name in methods(thing) if name not in but])
        try:
            getattr(thing, name)(*arguments(rng, rng.randrange(rng.choice((3, 7, 13)))))
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - any exception is allowed, a crash is not
            assert "\n" not in str(error), (name, error)
            raised += 1
    assert raised


def hammer(arch, where, seed):
    import random

    from images import boots, catalog
    from tests.conftest import MEMORY

    rng = random.Random(seed)
    machine = boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)
    if where == "none":
        parts = ARCHITECTURES[arch], TRAPS[arch], FREEBSD[arch].traps.trap_frame
        unmade = [_engine.Engine.__new__(_engine.Engine), Dispatcher.__new__(Dispatcher),
                  CodeReader.__new__(CodeReader), new_dispatcher(*parts, None)[0],
                  new_reader(*parts)[0]]
        shake(unmade, rng, 2000)
    elif where == "machine":
        probes = Breakpoints(machine)
        kinst_provider.create(probes, "strlen", "")
        shake([probes.dispatcher, machine.engine, machine.engine.detour], rng, 1500)
    else:
        probes = Breakpoints(machine, path=where)
        left = [20]

        def fire(_probe, _state):
            left[0] -= 1
            if left[0] > 0:
                shake([probes.dispatcher, machine.engine, machine.engine.detour], rng, 100, ENDLESS)

        probes.fire = fire
        kinst_provider.create(probes, "strlen", "")
        probes.enable()
        caller = Caller(machine, 100_000)
        try:
            caller.call(machine.symbol("strlen").address, [caller.place(b"ab\0")], "strlen")
        except Exception as error:  # noqa: BLE001 - arbitrary values may cause any exception
            print(type(error).__name__)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("where", ["none", "machine", *PATHS])
@pytest.mark.parametrize("seed", [1])
def test_odd_arguments_do_not_crash_the_process(arch, where, seed):
    from tests import conftest

    root = conftest.__file__.rsplit("/", 2)[0]
    program = CALLER.format(root=root, arch=arch, where=where, seed=seed)
    try:
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                                check=False, timeout=120, cwd=root)
    except subprocess.TimeoutExpired:
        pytest.fail("the process hangs")
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines()[-1] == "alive"


def test_native_objects_have_public_methods_to_call(booted):
    assert len(methods(booted.engine)) > 30
    probes = Breakpoints(booted)
    assert {"get", "set", "changed", "enable"} <= set(methods(probes.dispatcher))
    assert json.dumps(methods(probes.dispatcher))


@pytest.fixture
def shaped():
    return new_dispatcher(
        ARCHITECTURES["arm64"], TRAPS["arm64"], FREEBSD["arm64"].traps.trap_frame, None)[0]


@pytest.mark.parametrize("call", [
    lambda d: d.get(0), lambda d: d.set(0, 0), lambda d: d.changed(), lambda d: d.enable(),
    lambda d: d.disable(), lambda d: d.listen(0, 0, 0), lambda d: d.deafen(),
    lambda d: d.use_slots(0, 0, 4096, 0, False),
])
def test_a_dispatcher_without_a_machine_raises_an_error(shaped, call):
    with pytest.raises(RuntimeError, match="has no machine"):
        call(shaped)


@pytest.mark.parametrize("path", PATHS)
def test_vector_registers_cannot_be_accessed_in_a_firing(path):
    from images import boots, catalog
    from tests.conftest import MEMORY

    machine = boots.booted(catalog.find("teaching/arm64"), MEMORY)
    probes = Breakpoints(machine, path=path)
    number = register_names(machine.arch, TRAPS["arm64"]).index("q3")
    said = []

    def fire(_probe, _state):
        for call in (lambda: probes.dispatcher.set(number, 5),
                     lambda: probes.dispatcher.get(number)):
            with pytest.raises(ValueError, match="more than 64 bits") as error:
                call()
            said.append(str(error.value))

    probes.fire = fire
    kinst_provider.create(probes, "strlen", "0")
    probes.enable()
    caller = Caller(machine)
    assert caller.call(machine.symbol("strlen").address, [caller.place(b"ab\0")], "strlen") == 2
    assert len(said) == 2


def test_all_registers_that_the_return_path_loses_can_be_set():
    """One firing sets all eleven registers, x18 to x28 of arm64."""
    from images import boots, catalog
    from tests.conftest import MEMORY

    machine = boots.booted(catalog.find("teaching/arm64"), MEMORY)
    names = register_names(machine.arch, TRAPS["arm64"])
    wanted = {f"x{i}": 0x1000 + i for i in range(18, 29)}
    probes = Breakpoints(machine)
    plain = {}

    def fire(_probe, _state):
        for name, value in wanted.items():
            plain[name] = probes.dispatcher.get(names.index(name))
            probes.dispatcher.set(names.index(name), value)

    probes.fire = fire
    kinst_provider.create(probes, "strlen", "0")
    probes.enable()
    caller = Caller(machine)
    text = caller.place(b"ab\0")
    symbol = machine.symbol("strlen")
    machine.arch.prepare_call(machine, (text,), machine.guest.entry_address(machine.image))
    machine.pc = symbol.address
    from emu.machine.machine import Until

    machine.run(Until(instructions=machine.instructions + 1))
    assert {name: machine.read_register(name) for name in wanted} == wanted != plain


def test_the_record_sink_cannot_change_probes_during_a_firing(booted):
    probes = Breakpoints(booted, records=True, path=DIRECT)
    kinst_provider.create(probes, "strlen", "")
    probes.enable()
    refused = []

    def sink():
        for change in (probes.dispatcher.clear, lambda: probes.dispatcher.record("count"),
                       lambda: probes.dispatcher.choose(0)):
            with pytest.raises(RuntimeError, match="while one fires"):
                change()
            refused.append(change)
        probes.dispatcher.records()

    probes.dispatcher.sink = sink
    caller = Caller(booted)
    text = caller.place(b"a" * 1500 + b"\0")
    for _ in range(40):
        assert caller.call(booted.symbol("strlen").address, [text], "strlen") == 1500
        if refused:
            break
    assert refused


def test_running_the_machine_from_a_callback_is_refused(booted):
    said = []

    def fire(_probe, _state):
        with pytest.raises(RuntimeError, match="from inside its run") as error:
            booted.engine.run(booted.pc)
        said.append(str(error.value))
        with pytest.raises(RuntimeError, match="from inside its run"):
            booted.engine.map_ram(0x7000_0000, bytearray(4096))

    probes = Breakpoints(booted, fire)
    kinst_provider.create(probes, "strlen", "0")
    probes.enable()
    caller = Caller(booted)
    assert caller.call(booted.symbol("strlen").address, [caller.place(b"ab\0")], "strlen") == 2
    assert said and "\n" not in said[0]


@pytest.mark.parametrize("path", PATHS)
def test_listening_twice_fires_each_probe_once(booted, path):
    probes = Breakpoints(booted, path=path)
    kinst_provider.create(probes, "strlen", "")
    probes.enable()
    area = probes._trampolines
    kept = booted.snapshot()
    counts = []
    for again in (False, True):
        if again:
            booted.restore(kept)
            probes.dispatcher.listen(area.seam, probes._scratch, probes._scratch_value)
        before = probes.dispatcher.firings
        caller = Caller(booted)
        assert caller.call(booted.symbol("strlen").address, [caller.place(b"hello\0")], "f") == 5
        counts.append(probes.dispatcher.firings - before)
    assert counts[0] == counts[1] > 0
    probes.disable()
    assert not booted.engine.frozen


def test_the_breakpoint_exception_must_be_set_once_and_completely():
    """Refuse a second call and wrong context offsets, since firings write at these offsets."""
    import emu.unicorn.riscv64._cpu as _cpu

    def fresh():
        uc = unicorn.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64)
        return uc, _engine.Engine(uc, library_symbols(), riscv.UC_RISCV_REG_PC, 0)

    n = len(_cpu.PLACES)
    for pc, places in ((0, [552] * n), (552, [0] * n), (552, [1 << 20] * n), (553, [552] * n),
                       (552, []), (552, [552] * (n + 1))):
        _uc, engine = fresh()
        with pytest.raises(ValueError):
            engine.set_breakpoint_exception(_cpu, pc, places)
        with pytest.raises(RuntimeError, match="exception not set"):
            engine.detour.freeze(0)
    _uc, engine = fresh()
    engine.set_breakpoint_exception(_cpu, 552, [552] * n)
    with pytest.raises(RuntimeError, match="once"):
        engine.set_breakpoint_exception(_cpu, 552, [552] * n)
