"""Tests of the session functions that walk through source lines and functions."""

import pytest

import kinst_emu
from emu.host.errors import KinstError
from kinst_emu.shell.session import Session
from kinst_emu.shell.walking import Walking

MEMORY = "64M"


@pytest.fixture
def played(arch, tmp_path):
    """Return the functions of a session on a recording."""
    machine = kinst_emu.open(f"teaching/{arch}").boot(MEMORY)
    with machine.record(tmp_path / "x.rec"):
        machine.call("classify", 4, 3)
    session = Session({})
    session.open_recording(kinst_emu.Recording(tmp_path / "x.rec"))
    return session.verbs() | Walking(session).verbs()


def test_every_function_works_on_a_recording(played):
    played["go"]("fibonacci#1")
    assert played["args"]()["n"] == 3 and "n" in played["locals"]()
    here = played["next"]()
    assert here.frame.function == "fibonacci"
    assert played["enter"](2).frame.line
    played["enter"](-1)
    played["go"]("fibonacci#2")
    assert played["up"]().frame.number == 1 and played["down"]().frame.number == 0
    assert played["finish"]().value == 1
    played["go"]("fibonacci#2")
    assert " is 2 at instruction" in repr(played["why"]("n"))
    assert played["why"]().answer.reasons
    called = played["finish"](back=True)
    assert called.frame.function == "fibonacci" and played["args"]()["n"] == 3
    played["next"](-1)


def test_next_of_an_iterator_is_that_of_python(played):
    numbers = iter([1, 2])
    assert [played["next"](numbers), played["next"](numbers)] == [1, 2]
    assert played["next"](numbers, None) is None
    with pytest.raises(StopIteration):
        played["next"](numbers)


def test_a_walk_on_a_machine_can_be_undone(arch):
    names = {}
    session = Session(names)
    with pytest.raises(KinstError, match="no kernel is booted"):
        Walking(session).next()
    session.open_kernel(kinst_emu.open(f"teaching/{arch}"), MEMORY)
    walking = Walking(session)
    machine = names["machine"]
    before, count = machine.digest(), machine.instructions
    walking.next()
    after = machine.instructions
    assert after > count
    session.back(after - count)
    assert machine.digest() == before
    with pytest.raises(KinstError, match="a recording"):
        walking.why()
    with pytest.raises(KinstError, match="0 lines"):
        walking.next(0)


def test_the_walk_follows_the_machine_of_the_session(arch):
    names = {}
    session = Session(names)
    session.open_kernel(kinst_emu.open(f"teaching/{arch}"), MEMORY)
    walking = Walking(session)
    first = walking.walk
    assert walking.walk is first
    session.boot(MEMORY)
    assert walking.walk is not first and walking.walk.machine is names["machine"]
