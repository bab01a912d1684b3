"""Tests of walks through machines and recordings."""

import re
import subprocess
from pathlib import Path

import pytest

import images
import kinst_emu
from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason
from kinst_emu.api.walk import Walk

PUBLIC = {"turn", "stack", "frame", "here", "args", "locals", "up", "down", "next", "step", "visit",
          "reach", "finish", "why"}


@pytest.fixture
def recording(arch, tmp_path):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    with machine.record(tmp_path / "x.rec"):
        machine.call("classify", 6, 7)
    return kinst_emu.Recording(tmp_path / "x.rec").go("refund#1")


def test_the_tests_below_use_every_public_method():
    assert {name for name in vars(Walk) if not name.startswith("_")} == PUBLIC


def test_args_and_locals_are_typed_values_at_the_current_place(recording):
    walk = kinst_emu.Walk(recording)
    assert walk.frame.function == "refund" and walk.frame.number == 0
    assert dict(walk.args()) == {"amount": 7}
    assert walk.locals()["amount"] == 7 and list(walk.locals()) == ["amount", "sum"]
    with pytest.raises(KinstError, match="sum: optimized out"):
        walk.locals()["sum"]
    with pytest.raises(KinstError, match="refund has no variable 'amonut' in scope here; did you "
                                         "mean 'amount'"):
        walk.args()["amonut"]
    with pytest.raises(KeyError):
        walk.args()["nothing"]
    assert walk.args().get("nothing", 3) == 3


def test_variables_are_a_table_in_a_notebook(recording):
    walk = kinst_emu.Walk(recording)
    page = walk.locals()._repr_html_()
    assert "<td" in page and "u64 amount" in page and "<i>optimized out" in page
    assert repr(walk.args()) == "u64 amount = 7"


def test_a_structure_and_a_pointer_can_be_opened_in_a_notebook(arch, tmp_path):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    with machine.record(tmp_path / "x.rec"):
        machine.call("note_keep", "<b>hello</b>")
    walk = kinst_emu.Walk(kinst_emu.Recording(tmp_path / "x.rec").go("note_keep#1"))
    walk.next()
    for _ in range(30):
        if not walk.locals().local("note").reason:
            break
        walk.step()
    assert int(walk.locals()["note"]) % 8 == 0
    page = walk.locals()._repr_html_()
    assert "<details><summary>(struct note *) 0x" in page and "<div>next = " in page
    walk.finish()
    assert walk.frame.function != "note_keep"


def test_next_and_step_go_forward_and_back(recording):
    walk = kinst_emu.Walk(recording)
    first = recording.position
    lines = [walk.here().frame.line]
    for _ in range(3):
        lines.append(walk.next().frame.line)
    assert all(re.fullmatch(r"\./(lesson|kernel)\.c:\d+|\./\w+/start.S:\d+", line)
               for line in lines)
    assert len(set(lines)) > 1
    while recording.position > first:
        before = recording.position
        walk.next(-1)
        assert recording.position < before
    recording.go(first)
    entered = walk.step(2)
    assert entered.frame.line and recording.position > first
    walk.step(-2)
    assert recording.position == first


def test_finish_shows_what_the_function_returned(recording):
    walk = kinst_emu.Walk(recording)
    here = walk.finish()
    assert here.said == f"refund returned {here.value} ({here.value:#x})"
    assert here.value == recording.machine.registers[recording.machine.emulated.arch.result]
    back = walk.finish(back=True)  # to a call before: the innermost function is another one now
    assert not back.value and walk.frame.function != "refund"


def test_up_and_down_select_the_functions_on_the_stack(arch, tmp_path):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    with machine.record(tmp_path / "x.rec"):
        machine.call("classify", 4, 3)
    recording = kinst_emu.Recording(tmp_path / "x.rec").go("fibonacci#2")
    walk = kinst_emu.Walk(recording)
    assert [frame.function for frame in walk.stack()][:2] == ["fibonacci", "fibonacci"]
    assert walk.args()["n"] == 2
    assert walk.up().frame.number == 1 and walk.frame.number == 1
    at = recording.position
    with pytest.raises(KinstError, match="cannot select 100 above"):
        walk.up(100)
    assert walk.down().frame.number == 0 and recording.position == at
    with pytest.raises(KinstError, match="cannot select 1 below fibonacci"):
        walk.down()
    walk.up()
    walk.next()
    assert walk.frame.number == 0  # a step selects the innermost function again
    assert "fibonacci" in walk.stack()._repr_html_() and "#0  fibonacci" in repr(walk.stack())
    assert walk.turn is recording.machine.turn


def test_why_says_where_a_variable_was_made_without_moving(recording):
    walk = kinst_emu.Walk(recording)
    at = recording.position
    reason = walk.why("amount")
    assert recording.position == at and " is 7 at instruction" in reason.answer.question
    assert repr(reason).splitlines()[0] in reason._repr_html_()
    executed = walk.why()
    assert "is executed" in executed.answer.question and executed.answer.reasons
    assert recording.position == at
    with pytest.raises(KinstError, match="sum: optimized out"):
        walk.why("sum")
    with pytest.raises(KinstError, match="'nothing' is not a place in memory"):
        walk.why("nothing")


def test_a_place_is_reached_forward_and_back(arch, tmp_path):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    with machine.record(tmp_path / "x.rec"):
        machine.call("classify", 4, 4)
    recording = kinst_emu.Recording(tmp_path / "x.rec")
    calls = [moment.position for moment in recording.firings("kinst::fibonacci:0")]
    recording.go("start")
    walk = kinst_emu.Walk(recording)
    for position in calls:
        assert not walk.reach("fibonacci").said and recording.position == position
    assert walk.reach("fibonacci").said == "fibonacci: the recording ends here"
    recording.go("end")
    for position in reversed(calls):
        assert not walk.reach("fibonacci", back=True).said and recording.position == position
    recording.go(calls[1])
    line = walk.frame.line
    assert walk.visit().frame.line == line and recording.position == calls[2]
    assert walk.visit(-2).frame.line == line and recording.position == calls[0]
    with pytest.raises(KinstError, match="no symbol 'nosuch'"):
        walk.reach("nosuch")
    with pytest.raises(KinstError, match="needs a recording"):
        kinst_emu.Walk(machine).reach("fibonacci")


def test_the_origin_of_bytes_at_an_address_is_found(recording):
    walk, machine = kinst_emu.Walk(recording), recording.machine
    sp = machine.sp
    reason = walk.why(sp, 8)
    assert reason.answer.question.startswith(f"the value at {sp:#x} is ")


def test_an_operation_ends_when_it_is_interrupted(recording):
    walk = kinst_emu.Walk(recording)
    recording.go("end")
    walk.interrupted = lambda: True
    with pytest.raises(KeyboardInterrupt):
        walk.reach("describe", back=True)


def test_a_variable_with_an_unknown_value_is_in_scope(recording):
    walk = kinst_emu.Walk(recording)
    assert "sum" in walk.locals() and "other" not in walk.locals()


def test_an_interrupt_while_the_recording_moves_back_is_a_keyboard_interrupt(recording,
                                                                             monkeypatch):
    walk = kinst_emu.Walk(recording)
    walk.next()
    monkeypatch.setattr(recording.player, "seek", lambda _position: Stop(StopReason.INTERRUPTED, 0))
    for back in (lambda: walk.step(-1), lambda: walk.next(-1)):
        with pytest.raises(KeyboardInterrupt):
            back()


def test_the_limit_is_that_of_a_whole_operation(recording):
    recording.go("classify#1")
    walk = kinst_emu.Walk(recording, limit=10)
    walk.next()
    with pytest.raises(KinstError, match="not reached within 10 instructions"):
        walk.step(30)
    recording.go("classify#1")
    with pytest.raises(KinstError, match="not reached within 10 instructions"):
        walk.finish()


def test_a_string_is_shown_behind_the_pointer_to_it(arch, tmp_path):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    with machine.record(tmp_path / "x.rec"):
        machine.call("strlen", "a\x1b[31m\n" + "b" * 200)
    walk = kinst_emu.Walk(kinst_emu.Recording(tmp_path / "x.rec").go("strlen#1"))
    text = repr(walk.args())
    assert text.endswith('b"...') and ' "a^[[31m\\nbbb' in text and "\x1b" not in text


def test_lines_need_debug_data(tmp_path):
    stripped = tmp_path / "kernel"
    plain = kinst_emu.open("teaching/amd64").path
    if subprocess.run(["objcopy", "--strip-debug", str(plain), str(stripped)],
                      check=False).returncode:
        pytest.skip("objcopy is not installed")
    machine = kinst_emu.open(str(stripped)).boot("64M")
    walk = kinst_emu.Walk(machine)
    for step in (walk.next, walk.step, walk.visit):
        with pytest.raises(KinstError, match=r"no debug data|is unknown"):
            step()
    assert walk.stack()[0].function.startswith("cngetc") and "cngetc" in repr(walk)


def test_where_the_recording_ends_nothing_is_executed(recording):
    recording.go("end")
    walk = kinst_emu.Walk(recording)
    with pytest.raises(KinstError, match="the recording ends here"):
        walk.why()
    assert walk.next().said == "the recording ends here"


def test_a_live_machine_is_walked_forward(arch):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    walk = kinst_emu.Walk(machine)
    before = machine.instructions
    walk.next()
    assert machine.instructions > before
    for back in (lambda: walk.next(-1), lambda: walk.step(-1), lambda: walk.finish(back=True),
                 walk.why):
        with pytest.raises(KinstError, match=r"a recording.*: make one with machine.record"):
            back()


def test_a_walk_does_not_change_the_run(arch):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    state = machine.keep()
    walk = kinst_emu.Walk(machine)
    for _ in range(4):
        walk.next()
        walk.locals()
        walk.stack()
    walked, count = machine.digest(), machine.instructions
    machine.restore(state)
    machine.execute_again(count)
    assert machine.digest() == walked


def test_a_walk_that_takes_too_long_ends_with_an_error(arch):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    walk = kinst_emu.Walk(machine, limit=100_000)
    with pytest.raises(KinstError, match=r"not reached within 100000 instructions: the walk is now "
                                         r"at \w+"):
        walk.finish()  # the kernel waits for input and never returns


def test_source_text_is_shown_where_the_user_has_the_files(recording):
    walk = kinst_emu.Walk(recording, [Path(images.__file__).parent / "teaching"])
    assert walk.here().source == "{"
    assert repr(walk.here()).endswith("\n    {") and "<pre>" in walk.here()._repr_html_()
    with pytest.raises(KinstError, match="no such directory"):
        kinst_emu.Walk(recording, ["/nonexistent"])


def test_outside_the_kernel_each_question_is_an_error(recording, monkeypatch):
    walk = kinst_emu.Walk(recording)
    monkeypatch.setattr(walk._frames, "physical", lambda _read: [])
    for _ in range(2):  # also the second time, when the stack is known
        for ask in (walk.stack, walk.locals, walk.here):
            with pytest.raises(KinstError, match="is not code of the kernel"):
                ask()
        assert "is not code of the kernel" in repr(walk)
