"""Tests that a machine refuses concurrent threads, other processes, and changes by callbacks.

The tests find every public method and property by introspection.
"""

import inspect
import os
import pickle
import threading
import time

import pytest

import kinst_emu
from kinst_emu.api.inspected import Inspected
from kinst_emu.api.machine import Machine
from kinst_emu.api.program import Program
from kinst_emu.api.recording import RecordedMachine, Recording

# One use of each public method and property of a machine.
USES = {
    "call": lambda m: m.call("strlen", "a"), "evaluate": lambda m: m.evaluate('strlen("a")'),
    "place": lambda m: m.place("a"), "run": lambda m: m.run(instructions=1),
    "command": lambda m: m.command("ls"), "step": lambda m: m.step(),
    "execute_again": lambda m: m.execute_again(m.emulated.instructions + 10),
    "type": lambda m: m.type("a"), "probe": lambda m: m.probe("kinst::strlen:0"),
    "remove": lambda m: m.remove(None), "close_probes": lambda m: m.close_probes(),
    "trace": lambda m: m.trace("BEGIN { exit(0); }"), "remove_program":
    lambda m: m.remove_program(None), "keep": lambda m: m.keep(),
    "restore": lambda m: m.restore(KEPT[m]), "save": lambda m: m.save(os.devnull),
    "digest": lambda m: m.digest(), "record": lambda m: m.record(NAMED[m]).__enter__(),
    "on_qemu": lambda m: m.on_qemu().__enter__(), "pc": lambda m: m.pc, "sp": lambda m: m.sp,
    "instructions": lambda m: m.instructions, "now": lambda m: m.now,
    "console": lambda m: m.console, "read": lambda m: m.read(m.kernel.symbol("strlen"), 4),
    "write": lambda m: m.write(m.kernel.symbol("strlen"), b"\0"),
    "string": lambda m: m.string(m.kernel.symbol("strlen"), 1), "stack": lambda m: m.stack(),
    "value": lambda m: m.value("struct note", m.kernel.symbol("strlen")),
    "set": lambda m: m.set("int", m.kernel.symbol("strlen"), 1),
    "struct": lambda m: m.struct("note", m.kernel.symbol("strlen")),
    "variable": lambda m: m.variable("ticks"),
    "registers": lambda m: dict(m.registers),
    "type_second": lambda m: m.type_second("x"),
    "send_frame": lambda m: m.send_frame(bytes(60)),
}
# Members that use the kernel's file, Python objects or another machine, but not this machine.
ELSEWHERE = {"captured", "second_output", "where", "stacks", "prototype", "explore", "program",
             "turn", "kernel", "emulated"}
# Members that probe callbacks may use, because they change nothing.
LOOKS = {"pc", "sp", "instructions", "now", "console", "read", "string", "stack", "value", "struct",
         "variable", "registers", "remove"}
KEPT, NAMED = {}, {}


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def elsewhere(action):
    """Return the error that an action raises in another thread, or None."""
    said = []

    def try_it():
        try:
            action()
            said.append(None)
        except kinst_emu.KinstError as error:
            said.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return said[0]


@pytest.fixture
def machine(arch, tmp_path):
    made = kinst_emu.open(f"teaching/{arch}").boot(memory="64M")
    KEPT[made], NAMED[made] = made.keep(), tmp_path / "some.rec"
    yield made
    KEPT.clear()
    NAMED.clear()


def test_every_public_member_of_a_machine_is_tested_here():
    assert public(Machine) == set(USES) | ELSEWHERE - {"turn", "kernel", "emulated"}
    assert public(Inspected) <= public(Machine)


@pytest.mark.parametrize("verb", USES)
def test_a_machine_in_use_by_another_thread_refuses_every_method(machine, verb):
    before = machine.digest()
    with machine.turn:
        error = elsewhere(lambda: USES[verb](machine))
    assert isinstance(error, kinst_emu.MachineError) and "another thread" in str(error)
    assert machine.digest() == before


def test_a_machine_can_move_between_threads(machine):
    assert elsewhere(lambda: machine.call("strlen", "abc")) is None
    assert machine.call("strlen", "ab") == 2


def test_concurrent_use_raises_an_error_and_changes_nothing(machine):
    digest, wrong, right = machine.digest(), [], []
    ready = threading.Barrier(3)

    def use(text):
        ready.wait()
        for _ in range(15):
            try:
                with machine.probe("kinst::strlen:"):
                    right.append(machine.call("strlen", text) == len(text))
            except kinst_emu.MachineError as error:
                wrong.append("another thread" in str(error))

    threads = [threading.Thread(target=use, args=("a" * n,)) for n in (1, 50, 400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right and all(right) and all(wrong)
    machine.close_probes()
    machine.restore(KEPT[machine])
    assert machine.digest() == digest


@pytest.mark.parametrize("verb", sorted(set(USES) - LOOKS))
def test_callbacks_cannot_use_methods_that_change_the_machine(machine, verb):
    machine.call("strlen", "hello")
    machine.restore(KEPT[machine])
    with machine.probe("kinst::strlen:0"):
        machine.call("strlen", "hello")
    wanted = machine.digest()
    machine.restore(KEPT[machine])
    said = []

    def use(_firing):
        try:
            USES[verb](machine)
        except kinst_emu.KinstError as error:
            said.append(str(error))

    with machine.probe("kinst::strlen:0", use):
        machine.call("strlen", "hello")
    assert said and "\n" not in said[0], verb
    assert machine.digest() == wanted


@pytest.mark.parametrize("verb", sorted(LOOKS))
def test_methods_allowed_in_callbacks_change_nothing(machine, verb):
    with machine.probe("kinst::strlen:0"):
        machine.call("strlen", "hello")
    wanted = machine.digest()
    machine.restore(KEPT[machine])

    def use(_firing):
        try:
            USES[verb](machine)
        except kinst_emu.KinstError as error:
            assert "teaching" in str(error) or "kernel" in str(error)  # the kernel lacks the type

    with machine.probe("kinst::strlen:0", use):
        machine.call("strlen", "hello")
    assert machine.digest() == wanted


def test_a_finished_firing_refuses_access(machine):
    kept = []
    with machine.probe("kinst::strlen:0", kept.append):
        machine.call("strlen", "hello")
    registers = kept[0].registers
    with pytest.raises(kinst_emu.KinstError, match="the firing is over"):
        dict(registers)
    with pytest.raises(kinst_emu.KinstError, match="the firing is over"):
        kept[0].stack()
    for name in ("instructions", "now"):
        with pytest.raises(kinst_emu.KinstError, match="the firing is over"):
            getattr(kept[0], name)
    assert kept[0].function == "strlen" and "strlen:0" in repr(kept[0])


def used_elsewhere(machine):
    """Use a machine in another thread for 0.3 s; return an event that is set when the use ends."""
    held, done = threading.Event(), threading.Event()

    def use():
        with machine.turn:
            held.set()
            time.sleep(0.3)
            done.set()

    threading.Thread(target=use).start()
    assert held.wait(10)
    return done


def test_a_recording_ends_after_another_thread_releases_the_machine(machine, tmp_path):
    with pytest.raises(ZeroDivisionError), machine.record(tmp_path / "a.rec"):
        machine.call("strlen", "hello")
        done = used_elsewhere(machine)
        raise ZeroDivisionError
    assert done.is_set() and machine.emulated.runner is None
    assert kinst_emu.Recording(tmp_path / "a.rec").same()


def test_probes_are_closed_after_another_thread_releases_the_machine(machine):
    with machine.probe("kinst::strlen:0") as probes:
        done = used_elsewhere(machine)
    assert done.is_set() and probes.closed


def test_a_forked_process_cannot_use_the_machine_or_its_recording(machine, tmp_path):
    path = tmp_path / "a.rec"
    with machine.record(path):
        machine.call("strlen", "aaaa")
        child = os.fork()
        if not child:
            try:
                for use in USES.values():
                    with pytest.raises(kinst_emu.MachineError, match="forked"):
                        use(machine)
                machine.emulated.runner.end()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        machine.call("strlen", "parent")
    assert kinst_emu.Recording(path).same()
    assert os.listdir(tmp_path) == ["a.rec"]


def recording(machine, path):
    with machine.record(path):
        machine.call("strlen", "hello")
    return kinst_emu.Recording(path)


def test_the_machine_of_a_recording_is_read_only(machine, tmp_path):
    played = recording(machine, tmp_path / "a.rec").go("end")
    looks, position = played.machine, played.position
    KEPT[looks], NAMED[looks] = KEPT[machine], tmp_path / "other.rec"
    # Recorded states may be kept and saved; without probes, close_probes() does nothing.
    allowed = LOOKS | {"digest", "keep", "save", "close_probes"}
    for verb, use in USES.items():
        before = looks.digest()
        if verb in allowed:
            continue
        with pytest.raises(kinst_emu.KinstError, match="belongs to a recording"):
            use(looks)
        assert looks.digest() == before and played.position == position, verb
    assert public(RecordedMachine) == public(Machine)
    assert played.same()


def test_a_recording_can_be_used_by_one_thread_at_a_time(machine, tmp_path):
    played = recording(machine, tmp_path / "a.rec")
    uses = {
        "position": lambda: played.position, "go": lambda: played.go("end"),
        "step": played.step, "back": played.back, "same": played.same,
        "firings": lambda: next(played.firings("fbt::strlen:entry")),
        "who_wrote": lambda: next(played.who_wrote(0xffff, 8)),
        "origin": lambda: played.origin("sp")}
    with played.turn:
        for verb, use in uses.items():
            error = elsewhere(use)
            assert isinstance(error, kinst_emu.MachineError), verb
            assert "another thread" in str(error), verb
    # ``start`` and ``end`` come from the file; a walk, which uses ``player``, takes the lock.
    assert public(Recording) == set(uses) | {"start", "end", "turn", "player"}
    walk = kinst_emu.Walk(played.go("strlen#1"))
    walks = walk.stack, walk.locals, walk.args, walk.next, walk.step, walk.finish, walk.why, walk.up
    with played.turn:
        assert all("another thread" in str(elsewhere(use)) for use in walks)


def test_a_program_can_be_read_by_one_thread_at_a_time(machine):
    asked = "records", "aggregations", "firings", "ended", "status"
    with machine.trace("fbt::strlen:entry { @ = count(); }") as program:
        machine.call("strlen", "abc")
        with machine.turn:
            for name in asked:
                assert "another thread" in str(elsewhere(lambda name=name: getattr(program, name)))
        assert program.firings == 1
    properties = {name for name, value in inspect.getmembers(Program)
                  if isinstance(value, property)}
    assert properties == {*asked, "turn"}


def test_a_machine_cannot_be_pickled(machine):
    with pytest.raises(TypeError):
        pickle.dumps(machine)
