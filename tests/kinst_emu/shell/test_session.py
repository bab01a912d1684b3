"""Tests of the functions of shell sessions, and of moving the machine forward and back."""

import random

import pytest

import kinst_emu
from emu.host.errors import KinstError
from kinst_emu.shell.session import MOST_KEPT, Session

MEMORY = "64M"


@pytest.fixture
def names(arch):
    names = {}
    Session(names).open_kernel(kinst_emu.open(f"teaching/{arch}"), MEMORY)
    return names


@pytest.fixture
def session(names):
    return Session(names)


def test_every_session_function_works(session, names):
    """Call every function of a session.

    The functions that need FreeBSD or a recording must say so.
    """
    verbs = session.verbs()
    assert verbs["call"]("strlen", "hello") == 5 and verbs["call"]('strlen("abc")') == 3
    machine = names["machine"]
    assert machine.where(machine.pc) == verbs["here"]().where
    assert verbs["disas"]("strlen").instructions == names["kernel"].instructions("strlen")
    assert verbs["explain"]("strlen:0", 'strlen("a")').steps[0] == "function"
    assert any("cngetc" in line for line in verbs["stack"]())
    assert "size_t strlen(const char *" in verbs["layout"]("strlen")[0]
    with verbs["probe"]("fbt::strlen:entry") as probes:
        verbs["call"]("strlen", "x")
    assert probes.count == 1
    with verbs["trace"]("fbt::strlen:entry { @ = count(); }") as traced:
        verbs["call"]("strlen", "x")
    assert traced.aggregations == {"@": {(): 1}}
    assert verbs["run"](instructions=5).said == "instructions after 5 instructions"
    for name, arguments, why in (
            ("go", (1,), "needs a recording"), ("who_wrote", ("x",), "needs a recording"),
            ("command", ("ls",), "shell"), ("variable", ("mp_ncpus",), "mp_ncpus"),
            ("struct", ("thread", 0), "thread")):
        with pytest.raises(KinstError, match=why):
            verbs[name](*arguments)
    assert verbs["boot"](MEMORY) is names["machine"] is not machine
    assert set(verbs) == {"boot", "call", "run", "command", "step", "back", "go", "here", "probe",
                          "trace", "disas", "explain", "stack", "who_wrote", "layout", "variable",
                          "struct"}


def test_without_a_kernel_errors_say_what_to_do():
    session = Session({})
    for verb, why in ((session.here, "no kernel is booted"), (session.boot, "no kernel is open")):
        with pytest.raises(KinstError, match=why):
            verb()


def test_back_restores_earlier_states_exactly(session, names):
    """Compare digests along random sequences of step, run and back."""
    chosen, machine = random.Random(5), names["machine"]
    seen, gone_back = {machine.instructions: machine.digest()}, 0
    for _ in range(12):
        match chosen.choice(("step", "run", "back")):
            case "step":
                for _ in range(chosen.randrange(1, 6)):
                    session.step()
                    seen[machine.instructions] = machine.digest()
            case "run":
                session.run(instructions=chosen.randrange(1, 2000))
                seen.setdefault(machine.instructions, machine.digest())
            case "back":
                moves = session._known_moves()
                if not moves:
                    continue
                known = [at for at in seen if moves[0].first <= at < machine.instructions]
                at = chosen.choice(known)
                session.back(machine.instructions - at)
                assert machine.instructions == at
                gone_back += 1
        assert machine.digest() == seen[machine.instructions]
    assert gone_back > 2


def test_back_undoes_a_call_as_a_whole(session, names):
    machine = names["machine"]
    before = machine.digest()
    session.call("strlen", "hello")
    after = machine.digest()
    session.step()
    with pytest.raises(KinstError, match="can only be undone as a whole"):
        session.back(5)
    session.back()
    assert machine.digest() == after
    assert session.back().said == "back before call('strlen')"
    assert machine.digest() == before
    with pytest.raises(KinstError, match="nothing to go back to"):
        session.back()


def test_moving_the_machine_directly_discards_earlier_states(session, names):
    session.step()
    names["machine"].step()
    with pytest.raises(KinstError, match="nothing to go back to"):
        session.back()


def test_probes_do_not_fire_while_going_back(session, names):
    machine = names["machine"]
    machine.type("?\r")
    with machine.probe("kinst::cngetc:") as probes:
        session.run(instructions=3000)
        count = probes.count
        assert count
        session.back(10)
        assert probes.count == count


def test_the_number_of_kept_states_is_limited(session):
    for _ in range(MOST_KEPT + 5):
        session.step()
    with pytest.raises(KinstError, match="only the last 20 can be undone"):
        session.back(MOST_KEPT + 1)
    session.back(MOST_KEPT)


@pytest.mark.parametrize("count", [0, -1, -(1 << 70)])
def test_an_invalid_count_is_refused_and_changes_nothing(session, names, count):
    session.step(2)
    at = names["machine"].instructions
    for verb in (session.step, session.back):
        with pytest.raises(KinstError, match="must be 1 or more"):
            verb(count)
    assert names["machine"].instructions == at


def test_a_refused_call_does_not_limit_going_back(session, names):
    at = names["machine"].instructions
    session.step(5)
    for refused in (lambda: session.call("nosuch"), lambda: session.command("ls")):
        with pytest.raises(KinstError):
            refused()
    session.back(3)
    assert names["machine"].instructions == at + 2


def test_a_recording_can_go_to_any_position(session, names, tmp_path):
    machine = names["machine"]
    with machine.record(tmp_path / "x.rec"):
        machine.call("strlen", "some text")
    session.open_recording(kinst_emu.Recording(tmp_path / "x.rec"))
    recording = names["recording"]
    assert session.recording is recording and names["machine"] is recording.machine
    session.go("strlen")
    assert session.here().where == "strlen+0x0"
    at = recording.position
    assert session.step(3).changed
    session.back(3)
    assert recording.position == at
    with pytest.raises(KinstError, match="cannot go back by 1000000000 instructions"):
        session.back(10**9)
    assert recording.position == at
    name = recording.machine.emulated.arch.arguments[0]
    written = session.who_wrote(recording.machine.registers[name])
    assert written[0].where == "from outside" and recording.position == at
    with pytest.raises(KinstError, match="does not work on a recording"):
        session.run("strlen")
    with pytest.raises(KinstError, match="belongs to a recording"):
        session.call("strlen", "x")
    session.boot(MEMORY)
    assert session.recording is None


def test_replacing_the_machine_continues_with_the_new_one(session, names):
    names["machine"] = other = names["kernel"].boot(MEMORY)
    session.step()
    assert other.instructions == session.machine.instructions
    assert session.back().where == other.where(other.pc)
