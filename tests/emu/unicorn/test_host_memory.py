"""Tests that only the owner of a machine's host resources releases them."""

import copy
import gc
import os
import pickle
import resource
import subprocess
import sys

import pytest

import kinst_emu
from emu.host.errors import MachineError
from emu.unicorn.guest_memory import GuestMemory, StateFile
from emu.unicorn.new_engine import BESIDE, TRANSLATIONS, new_engine

SIZE = 1 << 20
# Program that boots machines until it runs out of address space
MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30,) * 2)
import kinst_emu
kernel, machines = kinst_emu.open("teaching/" + sys.argv[1]), []
try:
    while len(machines) < 50:
        machines.append(kernel.boot("64M"))
except kinst_emu.MachineError as error:
    print(len(machines), error)
del machines
print(kernel.boot("64M").call("strlen", "abc"))
"""


def descriptors():
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def machine(arch):
    return kinst_emu.open(f"teaching/{arch}").boot("64M")


def held(memory):
    """Return how many bytes of host memory the states of a machine use."""
    return os.fstat(memory.base.file.descriptor).st_blocks * 512


def test_a_copied_state_can_be_restored(machine):
    state, digest = machine.keep(), machine.digest()
    copied = copy.deepcopy(state), copy.copy(state)
    del state
    gc.collect()
    machine.call("strlen", "abc")
    for one in copied:
        machine.restore(one)
        assert machine.digest() == digest


def test_a_state_cannot_be_pickled(machine):
    with pytest.raises(TypeError, match="save"):
        pickle.dumps(machine.keep())


def test_collecting_a_state_closes_no_other_file(machine, tmp_path):
    state = machine.keep()
    copied = copy.deepcopy(state)
    machine.restore(machine.keep())
    del state
    gc.collect()
    with open(tmp_path / "mine", "w") as mine:
        own = os.fstat(mine.fileno())
        del copied
        gc.collect()
        assert os.fstat(mine.fileno()) == own
        mine.write("x")
    assert (tmp_path / "mine").read_text() == "x"


def test_states_share_one_descriptor_and_free_their_memory(machine):
    before, most = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 8, most[1]))
    try:
        states, digests = [], []
        for _ in range(200):
            states.append(machine.keep())
            digests.append(machine.digest())
            machine.run(instructions=500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert len(descriptors() - before) <= 1 and len(set(digests)) == 200
    for number in (199, 0, 100, 57):
        machine.restore(states[number])
        assert machine.digest() == digests[number]
    memory = machine.emulated.memory_part
    full = held(memory)
    del states
    gc.collect()
    assert held(memory) < full / 20
    assert machine.digest() == digests[57]


def test_freed_parts_of_a_state_file_are_reused_and_zeroed():
    memory = GuestMemory(SIZE)
    memory.view[:4] = b"kept"
    first, at = memory.snapshot(), memory.base.at
    memory.view[:4] = b"next"
    second = memory.snapshot()
    assert first.read(0, 4) == b"kept" and second.read(0, 4) == b"next"
    del first
    third = memory.snapshot()
    assert third.at == at and third.read(0, 4) == b"next" and third.read(SIZE - 4, 8) == bytes(4)
    memory.view[8:12] = b"more"
    memory.restore(second)
    assert bytes(memory.view[:12]) == b"next" + bytes(8)


def forked(action):
    """Fork a child that waits for a byte and then calls `action`; return (process, pipe)."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(theirs)
            os.read(ours, 1)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(ours)
    return child, theirs


def went_well(*children):
    for _child, pipe in children:
        os.close(pipe)
    return [os.waitpid(child, 0)[1] for child, _pipe in children] == [0] * len(children)


def test_a_forked_child_frees_no_memory_of_its_parent():
    memory = GuestMemory(SIZE)
    memory.view[:4] = b"kept"
    image = memory.snapshot()
    assert went_well(forked(lambda: image.file.give_back(image.at, 0)))
    assert image.read(0, 4) == b"kept"


def test_a_forked_child_keeps_memory_that_its_parent_frees():
    memory = GuestMemory(SIZE)
    memory.view[:4] = b"kept"
    memory.snapshot()

    def look():
        assert bytes(memory.view[:4]) == b"kept"

    child = forked(look)
    memory.restore(memory.snapshot())
    gc.collect()
    memory.view[:4] = b"next"
    memory.snapshot()
    assert went_well(child)


def test_forked_children_have_separate_states():
    memory = GuestMemory(SIZE)
    memory.view[:4] = b"kept"
    memory.snapshot()

    def keep(text):
        for number in range(200):
            wanted = text + number.to_bytes(4, "little")
            memory.view[:8] = wanted
            image = memory.snapshot()
            assert bytes(memory.view[:8]) == image.read(0, 8) == wanted

    texts = b"one.", b"two.", b"3rd."
    assert went_well(*[forked(lambda text=text: keep(text)) for text in texts])
    assert bytes(memory.view[:4]) == b"kept"


def test_running_out_of_descriptors_raises_a_machine_error(machine, monkeypatch):
    def none_left(self, size):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(StateFile, "__init__", none_left)
    machine.emulated.memory_part._states = None
    with pytest.raises(MachineError, match="cannot save the state in memory: Too many open files"):
        machine.keep()


def test_running_out_of_address_space_raises_an_error(arch):
    done = subprocess.run([sys.executable, "-c", MANY, arch], capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert int(first.split()[0]) >= 2 and "MiB of" in first and last == "3"


def test_creating_an_engine_collects_garbage_and_tries_again(monkeypatch):
    tried = []

    def without_room(size):
        tried.append(size)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("emu.unicorn.new_engine.try_address_space", without_room)
    with pytest.raises(MachineError, match="ulimit -v"):
        new_engine(1, 1)
    assert tried == [TRANSLATIONS + BESIDE] * 2
