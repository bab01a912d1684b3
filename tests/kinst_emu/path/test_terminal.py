"""Tests of the walk through a path in the terminal; they read what is drawn."""

import asyncio
import fcntl
import html
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import images
import kinst_emu
from dtrace.debug.source_text import SourceText
from kinst_emu.path.terminal import HELP, PathWalk, shown
from kinst_emu.path.window import call_window
from tests.kinst_emu.commands.test_commands import refused, run

SOURCES = Path(images.__file__).parent / "teaching"
KEYS = {"-": "minus", ".": "full_stop", ":": "colon", "#": "number_sign", "/": "slash",
        "%": "percent_sign", "_": "underscore"}
ACTIONS = {"instruction", "move", "finish", "select", "why", "ask", "code", "scrub", "interrupt",
           "keys", "leave"}


@pytest.fixture
def played(request, tmp_path):
    """Return a recording of classify(4, 4), and the window of its first fibonacci()."""
    arch = getattr(request, "param", "amd64")
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    with machine.record(tmp_path / "x.rec"):
        machine.call("classify", 4, 4)
    recording = kinst_emu.Recording(tmp_path / "x.rec")
    return recording, call_window(recording.player, "fibonacci#1")


def drawn(app):
    """Return the lines on the screen."""
    rows = {}
    for x, y, text in re.findall(r'<text class="[^"]*" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>',
                                 app.export_screenshot()):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    return [" ".join(text for _x, text in sorted(row)) for _y, row in sorted(rows.items())]


def walked(played, keys, size=(150, 45), text=True):
    """Press keys; return (position, lines on the screen) at the start and after each key."""
    recording, window = played
    app = PathWalk(recording, window, SourceText([SOURCES]) if text else None)

    async def walk():
        found = []
        async with app.run_test(size=size) as pilot:
            for key in ["", *keys]:
                for one in ([key] if len(key) == 1 or not key.startswith("type ") else
                            [KEYS.get(letter, letter) for letter in key[5:]]):
                    if one:
                        await pilot.press(one)
                await pilot.pause()
                while app.busy and app.is_running:
                    await asyncio.sleep(0.01)
                for _ in range(3):
                    await pilot.pause()
                found.append((recording.position, drawn(app)))
                if not app.is_running:
                    break
        return found

    return asyncio.run(walk()), app


def on(lines, text):
    return any(text in line for line in lines)


def test_the_tests_press_the_key_of_every_action():
    named = {binding.action.partition("(")[0] if hasattr(binding, "action")
             else binding[1].partition("(")[0] for binding in PathWalk.BINDINGS}
    assert named == ACTIONS


def test_the_walk_begins_at_the_start_of_the_path(played):
    (at, lines), = walked(played, [])[0]
    assert at == played[1].begin
    assert on(lines, "fibonacci() of") and on(lines, "instruction 0 of") and on(lines, "0 %")
    assert on(lines, "fibonacci  ./lesson.c:80") and on(lines, "#0  fibonacci")
    assert on(lines, "int n = 4") and on(lines, "registers")
    assert on(lines, "> 80") or on(lines, ">  80")


@pytest.mark.parametrize("played", ["amd64", "arm64", "riscv64"], indirect=True)
def test_the_keys_do_what_the_walk_does(played):
    recording, window = played
    walk = kinst_emu.Walk(recording)

    def expected(move):
        move()
        return recording.position

    recording.go(window.begin)
    moves = [("n", lambda: walk.next()), ("s", lambda: walk.step()), ("s", lambda: walk.step()),
             ("s", lambda: walk.step()), ("o", lambda: walk.finish()),
             ("O", lambda: walk.finish(back=True)), ("N", lambda: walk.next(-1)),
             ("S", lambda: walk.step(-1)), ("v", lambda: walk.visit()),
             ("V", lambda: walk.visit(-1)), ("right", lambda: recording.step()),
             ("left", lambda: recording.back()),
             ("5", lambda: recording.go(window.begin.instructions + (
                 window.end.instructions - window.begin.instructions) // 2)),
             ("e", lambda: recording.go(window.end)), ("0", lambda: recording.go(window.begin))]
    wanted = [expected(move) for _key, move in moves]
    recording.go("start")
    found, _app = walked(played, [key for key, _move in moves])
    assert [at for at, _lines in found[1:]] == wanted
    for at, lines in found:
        assert on(lines, f"instruction {at.instructions - window.begin.instructions} of")


def test_the_stack_selects_whose_variables_are_shown(played):
    found, _app = walked(played, ["type /fibonacci", "enter", "u", "d", "d"])
    assert on(found[2][1], "int n = 3") and on(found[2][1], "#1  fibonacci")
    assert on(found[3][1], "int n = 4") and found[3][0] == found[2][0]
    assert on(found[4][1], "int n = 3")
    assert on(found[5][1], "cannot select 1 below fibonacci")


def test_places_and_positions_are_reached_and_errors_stay_where_they_are(played):
    found, _app = walked(played, [
        "type /lesson.c:83", "enter", "type /-lesson.c:80", "enter", "type /50%", "enter",
        "type /nosuch", "enter", "type /describe", "enter", "slash", "x", "left", "escape"])
    places = [at for at, _lines in found]
    assert places[2] > places[0] and places[4] < places[2] and on(found[4][1], "./lesson.c:80")
    assert places[6] != places[4]
    assert on(found[8][1], "nosuch") and places[8] == places[6]
    assert on(found[10][1], "describe is not executed after this moment")
    assert places[10] == places[6] == places[-1]
    assert on(found[12][1], "x") and not on(found[14][1], "with - before it")


def test_variables_open_and_stay_open_and_say_why(tmp_path):
    machine = kinst_emu.open("teaching/arm64").boot("64M")
    with machine.record(tmp_path / "x.rec"):
        machine.call("note_keep", "hello")
    recording = kinst_emu.Recording(tmp_path / "x.rec").go("note_keep#1")
    walk = kinst_emu.Walk(recording)
    while walk.locals().local("note").reason:
        recording.step()
    where = recording.position.instructions
    names = list(walk.locals())
    window = call_window(recording.player, "note_keep")
    down = ["down"] * (names.index("note") + 1)
    found, _app = walked((recording, window), [
        f"type /{where}", "enter", "tab", *down, "enter", "right", "w", "x", "W", "x"])
    at = 4 + len(down)
    opened, stepped, why, closed, executed, last = (lines for _at, lines in found[at : at + 6])
    assert on(opened, 'text = "') and on(opened, "next = (struct note *) 0x")
    assert on(stepped, 'text = "') and found[at + 1][0] != found[at][0]
    assert on(why, "note (in x") and not on(closed, "note (in x")
    assert on(executed, "is executed") and not on(last, "is executed")


def test_registers_that_changed_are_marked(played):
    found, app = walked(played, ["tab", "end", "enter", "right", "right"])
    arch = played[0].machine.emulated.arch
    lines = found[-1][1]
    assert on(lines, f"{next(iter(arch.registers))} ")
    assert app.moment is not None and arch.pc in app.moment.changed
    assert {one.key[1] for one in app.moment.registers} > app.moment.changed


def test_the_code_is_shown_as_source_or_as_instructions(played):
    found, _app = walked(played, ["c", "c"])
    assert on(found[0][1], "fibonacci(int n)") and not on(found[1][1], "fibonacci(int n)")
    assert on(found[1][1], "+0") and on(found[2][1], "fibonacci(int n)")
    found, _app = walked(played, ["c"], text=False)
    assert on(found[0][1], "+0") and on(found[1][1], "source lines need --sources DIR")


def test_help_lists_the_keys_and_any_key_closes_it(played):
    found, _app = walked(played, ["question_mark", "q", "n"])
    assert all(on(found[1][1], line.split("  ")[0]) for line in HELP.splitlines())
    assert not on(found[2][1], "next, previous visit") and found[3][0] != found[2][0]


def test_a_narrow_terminal_has_the_variables_below_the_code(played):
    found, _app = walked(played, ["n"], size=(80, 40))
    lines = found[-1][1]
    code = next(n for n, line in enumerate(lines) if "fibonacci(int n)" in line)
    value = next(n for n, line in enumerate(lines) if "int n = 4" in line)
    assert value > code


def test_escape_interrupts_a_step(played):
    recording, window = played
    app = PathWalk(recording, window)

    async def walk():
        async with app.run_test(size=(120, 40)) as pilot:
            async def settled():
                while app.busy:
                    await asyncio.sleep(0.01)
                await pilot.pause()

            await settled()

            def wait():
                while not app.walk.interrupted():
                    time.sleep(0.01)
                raise KeyboardInterrupt

            app._run(wait)
            await pilot.press("n")  # ignored while a step is in progress
            assert app.busy
            await pilot.press("escape")
            await settled()
            return recording.position, drawn(app)

    position, lines = asyncio.run(walk())
    assert on(lines, "interrupted") and position == window.begin


def test_the_key_q_ends_the_walk(played):
    found, app = walked(played, ["escape", "q", "n"])
    assert len(found) == 3 and not app.is_running


def test_control_characters_do_not_reach_the_terminal():
    assert shown("a\x1b]0;b\x9bc\nd").plain == "a^[]0;b\\x9bc d"


def test_a_position_that_is_not_reached_leaves_the_walk_where_it_is(played):
    found, _app = walked(played, ["type /fibonacci#99", "enter"])
    assert on(found[2][1], "fibonacci#99 is not reached") and found[2][0] == found[0][0]


def test_at_the_end_of_the_recording_the_walk_says_so(played):
    found, _app = walked(played, ["e", *["o"] * 3])
    assert any(on(lines, "the recording ends here") for _at, lines in found)


@pytest.fixture
def recorded(tmp_path):
    machine = kinst_emu.open("teaching/amd64").boot()
    with machine.record(tmp_path / "x.rec"):
        machine.call("classify", 4, 4)
    return str(tmp_path / "x.rec")


def test_the_command_needs_a_terminal(recorded):
    for more, why in (([], "are not a terminal"), (["--json"], "cannot be used with"),
                      (["--against", recorded], "cannot be used with")):
        refused(run("kinst", "path", recorded, "--of", "fibonacci", "--walk", *more), why)


def test_the_command_draws_on_a_terminal_until_it_is_left(recorded):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "kinst_emu.commands.kinst", "path", recorded, "--of", "fibonacci#1",
         "--walk"], stdin=slave, stdout=slave, stderr=slave,
        env=os.environ | {"TERM": "xterm-256color"})
    os.close(slave)
    try:
        seen, sent = driven(child, master)
    finally:
        child.kill()
        os.close(master)
    assert sent, seen[-3000:]
    assert child.returncode == 0 and b"Traceback" not in seen


def driven(child, terminal):
    """Press n and q when the screen is drawn; return what was drawn, and whether it was."""
    seen, sent, limit = b"", False, time.monotonic() + 60
    while child.poll() is None and time.monotonic() < limit:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            seen += os.read(terminal, 1 << 16)
        except OSError:  # the program has closed the terminal
            break
        if not sent and b"int n = 4" in seen:
            os.write(terminal, b"nq")
            sent = True
    if sent:
        child.wait(30)
    return seen, sent
