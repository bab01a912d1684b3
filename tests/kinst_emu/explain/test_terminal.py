"""Tests that the terminal shows the steps of an explanation and the recorded state."""

import asyncio
import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console
from textual.widgets import Input, Static

from images import catalog
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.steps.step import Table
from kinst_emu.explain.steps.terms import TERMS, first_terms
from kinst_emu.explain.view.firing_moments import at_step, moments
from kinst_emu.explain.view.terminal import FiringStepper, columns, shown


@pytest.fixture(scope="module")
def explained():
    return explain(catalog.find("teaching/arm64"), Asked("strlen:4", 'strlen("hello")'))


@pytest.fixture(scope="module")
def on_amd64():
    return explain(catalog.find("teaching/amd64"), Asked("strlen:16", 'strlen("hello")'))


def plain(app, name):
    return text_of(app.query_one(f"#{name}", Static).content)


def text_of(content):
    console = Console(width=300, color_system=None)
    with console.capture() as capture:
        console.print(content)
    return capture.get()


PANELS = ("title", "place", "told", "code", "registers", "stack", "trampoline")


def walked(explained, groups, size=(160, 50)):
    """Press groups of keys; return (step number, panel texts, focused widget) after each group."""
    app = FiringStepper(explained)

    async def walk():
        found = []
        async with app.run_test(size=size) as pilot:
            for keys in groups:
                await pilot.press(*keys)
                await pilot.pause()
                found.append((app.at, {name: plain(app, name) for name in PANELS}, app.focused))
        return found

    return asyncio.run(walk())


def played(explained, keys, size=(160, 50)):
    """Press keys; return (step number, panel texts, focused widget) after the last key."""
    return walked(explained, [keys], size)[0]


def test_the_n_p_and_arrow_keys_go_through_the_steps(explained):
    last = len(explained.steps) - 1
    groups = ("", 0), ("n", 1), ("n", 2), ("p", 1), ("pp", 0), ("n" * 40, last)
    for (_keys, at), (found, panels, _focused) in zip(
            groups, walked(explained, [keys for keys, _at in groups]), strict=True):
        assert found == at
        assert f"{at + 1}/{last + 1}  {explained.steps[at].title}" in panels["title"]
        expected = shown(explained.steps[at], terms=first_terms(explained.steps)[at])
        assert panels["told"] == text_of(expected)
    assert played(explained, ["right", "right", "left"])[0] == 1


def test_the_g_key_goes_to_a_step_by_number_or_name(explained):
    names = [step.name for step in explained.steps]
    assert played(explained, ["g", "4", "enter"])[0] == 3
    at, _panels, focused = played(explained, ["g", *"frame", "enter", "n"])
    assert at == names.index("frame") + 1 and not isinstance(focused, Input)
    assert played(explained, ["n", "g", *"nosuch", "enter"])[0] == 1
    assert played(explained, ["n", "g", "0", "enter"])[0] == 1


def test_the_g_key_accepts_an_unambiguous_prefix_of_a_step_name(explained):
    names = [step.name for step in explained.steps]
    shortest = [next(name[:n] for n in range(1, len(name) + 1)
                     if [one for one in names if one.startswith(name[:n])] == [name])
                for name in names]
    found = walked(explained, [["g", *begins, "enter"] for begins in shortest])
    assert [at for at, _panels, _focused in found] == list(range(len(names)))
    # The steps "vector" and "verdict" begin with "ve".
    assert len([name for name in names if name.startswith("ve")]) == 2
    assert played(explained, ["n", "g", *"ve", "enter"])[0] == 1


@pytest.mark.parametrize("which", ["explained", "on_amd64"])
def test_panels_show_the_machine_state_at_the_step(which, request):
    one = request.getfixturevalue(which)
    firing, arch = one.firing, one.words.arch
    keys = [["n"] if number else [] for number in range(len(one.steps))]
    for step, (_at, panels, _focused) in zip(one.steps, walked(one, keys), strict=True):
        row, stack = firing.rows[step.row], firing.memory.stacks[step.row]
        if step.handles is not None:  # the panels show the handler's call, not its return
            row, stack = firing.frames[step.handles].called, firing.frames[step.handles].stack
            assert row.registers[arch.sp] == stack.address & -8
            assert "the handler" in panels["code"] and "the handler" in panels["place"]
        else:
            code = firing.original if step is one.steps[0] else row.code
            assert arch.disassemble(code, row.address) in panels["code"]
        for name in (arch.pc, arch.sp):
            assert f"{name} {row.registers[name]:#x}" in panels["place"], step.name
            assert f"{row.registers[name]:#018x}" in panels["registers"].splitlines()[
                1 + (name == arch.sp)], step.name
        word = int.from_bytes(stack.content[:8], "little")
        assert f"{stack.address:#x}" in panels["stack"] and f"{word:#018x}" in panels["stack"]
        if firing.slot:
            assert (f"{firing.slot:#x}" in panels["trampoline"]) == (step is not one.steps[0])
    names = [step.name for step in one.steps]
    frame = firing.frames[0]
    assert one.steps[names.index("frame")].handles == 0
    assert f"{frame.called.registers[arch.sp]:#x}" in played(
        one, ["n"] * names.index("frame"))[1]["place"]


@pytest.mark.parametrize("which", ["explained", "on_amd64"])
def test_a_step_that_lists_instructions_is_at_the_last_of_them(which, request):
    one = request.getfixturevalue(which)
    keys = [["n"] if number else [] for number in range(len(one.steps))]
    seen = 0
    for step, (_at, panels, _focused) in zip(one.steps, walked(one, keys), strict=True):
        tables = [part for part in step.parts if isinstance(part, Table)
                and part.heads[:1] == ("where",)]
        if step.name not in ("vector", "return") or not tables:
            continue
        where, text = tables[0].rows[-1][0], tables[0].rows[-1][-1]
        assert panels["code"].splitlines()[-1].split() == [where, *text.split()], step.name
        assert panels["place"].split()[-1] == where
        seen += 1
    assert seen


@pytest.mark.parametrize("which", ["explained", "on_amd64"])
def test_the_period_key_advances_one_instruction_with_its_panels(which, request):
    one = request.getfixturevalue(which)
    arch, found = one.words.arch, moments(one.firing)
    count = len(found)
    last = count - 1
    jumps = last // 9 if which == "on_amd64" else 2  # on amd64, continue to the last instruction
    keys, expected = [["full_stop"] * 9] * jumps, list(range(9, 9 * jumps + 1, 9))
    if which == "on_amd64":
        keys += [["full_stop"]] * (last - 9 * jumps + 1)
        expected += [*range(9 * jumps + 1, last + 1), last]
    keys += [["comma"]] * 2
    expected += [expected[-1] - 1, expected[-1] - 2]
    begins = [at_step(found, step) for step in one.steps]
    for number, (at, panels, _focused) in zip(expected, walked(one, keys), strict=True):
        moment = found[number]
        assert at == max(n for n, begin in enumerate(begins) if begin <= number)
        assert f"instruction {number + 1}/{count}" in panels["title"]
        for name in (arch.pc, arch.sp):
            assert f"{name} {moment.registers[name]:#x}" in panels["place"], number
        if moment.handles is None:
            assert arch.disassemble(moment.code, moment.pc) in panels["code"]
        else:
            assert "the handler" in panels["place"]
        for word in moment.stack:
            if word.changed and moment.sp <= word.address < moment.sp + 64:
                assert f"{word.value:#018x}  {word.address:#x}" in panels["stack"]
    # Move by single instructions within a step of the explanation, then go to the next step.
    at, panels, _focused = played(one, ["n", "n", "full_stop", "full_stop", "comma", "n"])
    assert at == 3 and "instruction" not in panels["title"].split(one.steps[3].title)[1]


def test_the_trampoline_panel_lists_the_executed_instructions(on_amd64):
    """The panel lists only executed instructions; pictures also show the address after the jump."""
    at = [step.name for step in on_amd64.steps].index("trampoline")
    lines = played(on_amd64, ["n"] * at)[1]["trampoline"].splitlines()
    firing = on_amd64.firing
    assert [line.split()[0] for line in lines[1:]] == [
        f"{row.address:#x}" for row in firing.rows
        if firing.slot <= row.address < firing.slot + len(firing.trampoline)]


def test_an_emulated_instruction_has_no_trampoline_at_any_step():
    one = explain(catalog.find("teaching/amd64"), Asked("strlen:28", 'strlen("hello")'))
    assert not one.firing.slot
    for keys in ([], ["n"]):
        assert played(one, keys)[1]["trampoline"].strip() == "none: the instruction is emulated"


def test_the_recorded_stack_starts_at_the_stack_pointer_in_every_row(explained, on_amd64):
    for one in (explained, on_amd64):
        for number, row in enumerate(one.firing.rows):
            assert one.firing.memory.stacks[number].address == row.registers[one.words.arch.sp] & -8


@pytest.mark.parametrize("arch, register", [("arm64", "elr_el1"), ("riscv64", "sepc")])
def test_the_exception_return_address_is_visible_without_scrolling(arch, register):
    one = explain(catalog.find(f"teaching/{arch}"), Asked("strlen:4", 'strlen("hello")'))
    names = [step.name for step in one.steps]
    at = names.index("exception")
    _at, panels, _focused = played(one, ["n"] * at, (80, 24))
    assert f"{register} {one.firing.instruction.address:#x}" in panels["place"]
    assert panels["registers"].splitlines()[3].split() == [
        register, f"{one.firing.instruction.address:#018x}"]


def test_a_what_if_step_shows_the_state_of_its_own_run():
    one = explain(catalog.find("teaching/arm64"), Asked(
        "strtoul:4", 'strtoul("12", 0, 10)', what_if="copy"))
    step = one.steps[-1]
    assert step.name == "what-if" and step.wrong and one.wrong is not None
    x8 = one.wrong.rows[step.row].registers["x8"]
    assert x8 != one.firing.rows[-1].registers["x8"]
    _at, panels, _focused = played(one, ["n"] * len(one.steps))
    assert f"{x8:#018x}" in panels["registers"]


@pytest.mark.parametrize("size", [(100, 30), (80, 24)])
def test_every_column_exists_on_a_small_terminal(on_amd64, size):
    """Tables keep their full width; a small terminal scrolls them."""
    tables = 0
    for number, step in enumerate(on_amd64.steps):
        if step.name not in ("function", "frame"):
            continue
        small, large = (played(on_amd64, ["n"] * number, at)[1] for at in (size, (250, 80)))
        for part in step.parts:
            if isinstance(part, Table):
                tables += 1
                assert str(columns(part)) in small["told"].replace(" \n", "\n") or all(
                    line.rstrip() in small["told"] for line in str(columns(part)).splitlines())
        assert {k: v for k, v in small.items() if k != "told"} == {
            k: v for k, v in large.items() if k != "told"}
    assert tables > 1


def test_a_screen_of_100_columns_shows_complete_first_columns(on_amd64):
    app = FiringStepper(on_amd64)

    async def play():
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            return "\n".join(strip.text for strip in app.screen._compositor.render_strips())

    screen = asyncio.run(play())
    assert "offset  bytes" in screen and "16      80 7c 07 01 00" in screen, screen


def test_a_term_is_explained_only_where_it_is_first_used(explained):
    found = first_terms(explained.steps)
    said = [term for terms in found for term in terms]
    assert len(said) == len(set(said)) and {"trap frame", "trampoline", "verdict"} <= set(said)
    at = next(n for n, terms in enumerate(found) if "trap frame" in terms)
    for number in (0, at - 1, at, at + 1):
        text = played(explained, ["n"] * number)[1]["told"]
        assert (TERMS["trap frame"][:30] in text) == (number == at)


@pytest.mark.parametrize("key", ["x", "q", "n", "escape"])
def test_the_question_mark_shows_the_keys_until_a_key_is_pressed(explained, key):
    app = FiringStepper(explained)

    async def play():
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("question_mark")
            await pilot.pause()
            during = str(app.screen.query_one("#keys", Static).content)
            await pilot.press(key)
            await pilot.pause()
            await pilot.press("n")
            await pilot.pause()
            return during, app.at

    during, at = asyncio.run(play())
    assert "next step" in during and max(map(len, during.splitlines())) <= 76 and at == 1


def test_a_narrow_terminal_shows_only_the_step(explained):
    app = FiringStepper(explained)

    async def play():
        async with app.run_test(size=(60, 20)) as pilot:
            await pilot.pause()
            return app.query_one("#panels").display, app.query_one("#step").size.width

    shown_panels, width = asyncio.run(play())
    assert not shown_panels and width > 50


@pytest.mark.parametrize("keys", [["q"], ["ctrl+c"], ["g", "ctrl+c"], ["question_mark", "ctrl+c"]])
def test_q_and_ctrl_c_quit_from_every_screen(explained, keys):
    app = FiringStepper(explained)

    async def play():
        async with app.run_test() as pilot:
            await pilot.press(*keys)
            await pilot.pause()
        return app.return_code

    assert asyncio.run(play()) == 0


@contextlib.contextmanager
def on_a_terminal(term, rows, columns):
    """Run ``kinst explain`` on a pseudo-terminal, and yield the process and its terminal."""
    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    unset = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
            [sys.executable, "-m", "kinst_emu.commands.kinst", "explain", "-k", "teaching/amd64",
             "strlen:16", "-c", 'strlen("a")'], stdin=side, stdout=side, stderr=subprocess.STDOUT,
            env={**unset, "TERM": term}) as process:
        os.close(side)
        try:
            yield process, main
        finally:
            process.kill()
    os.close(main)


def test_a_dumb_terminal_gets_plain_text():
    with on_a_terminal("dumb", 24, 80) as (process, screen):
        text = b""
        with contextlib.suppress(OSError):  # the process has closed the terminal
            while piece := os.read(screen, 4096):
                text += piece
        process.wait(10)
    assert process.returncode == 0 and b"\x1b" not in text
    assert b"1. The instruction at strlen:16" in text


def test_the_whole_terminal_is_used_at_any_size():
    with on_a_terminal("xterm", 43, 132) as (process, screen):
        text = b""
        # Read until the command prints nothing more.
        while select.select([screen], [], [], 1 if b"quit" in text else 30)[0]:
            text += os.read(screen, 4096)
        os.write(screen, b"q")
        with contextlib.suppress(OSError):
            while os.read(screen, 4096):
                pass
        process.wait(10)
    last = text[:text.rindex(b"quit")]  # the list of keys is in the last line
    assert process.returncode == 0 and re.findall(rb"\x1b\[(\d+);\d+H", last)[-1] == b"43"
