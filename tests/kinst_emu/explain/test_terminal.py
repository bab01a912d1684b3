"""The terminal's steps are the explanation's, and its panels the recording's."""

import asyncio

import pytest
from rich.console import Console
from textual.widgets import Input, Static

from images import catalog
from kinst_emu.explain.explained import Asked, explain
from kinst_emu.explain.terminal import Stepper, shown


@pytest.fixture(scope="module")
def explained():
    return explain(catalog.find("teaching/arm64"), Asked("strlen:4", 'strlen("hello")'))


def plain(app, name):
    return text_of(app.query_one(f"#{name}", Static).content)


def text_of(content):
    console = Console(width=300, color_system=None)
    with console.capture() as capture:
        console.print(content)
    return capture.get()


def played(explained, keys, size=(160, 50)):
    """The application behind the keys, and what its panels show."""
    app = Stepper(explained.title, explained.steps, explained.firing, explained.words)

    async def play():
        async with app.run_test(size=size) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            return app.at, {name: plain(app, name) for name in (
                "title", "told", "code", "registers", "stack", "trampoline")}, app.focused

    return asyncio.run(play())


def test_n_and_p_and_the_arrows_go_through_the_steps(explained):
    last = len(explained.steps) - 1
    for keys, at in (("", 0), ("n", 1), ("nn", 2), ("nnp", 1), ("p", 0), ("n" * 40, last)):
        found, panels, _focused = played(explained, list(keys))
        assert found == at
        assert f"{at + 1}/{last + 1}  {explained.steps[at].title}" in panels["title"]
        assert panels["told"] == text_of(shown(explained.steps[at]))
    assert played(explained, ["right", "right", "left"])[0] == 1


def test_g_goes_to_a_step_by_number_and_by_name(explained):
    names = [step.name for step in explained.steps]
    assert played(explained, ["g", "4", "enter"])[0] == 3
    at, _panels, focused = played(explained, ["g", *"frame", "enter", "n"])
    assert at == names.index("frame") + 1 and not isinstance(focused, Input)
    assert played(explained, ["n", "g", *"nosuch", "enter"])[0] == 1
    assert played(explained, ["n", "g", "0", "enter"])[0] == 1


def test_panels_show_what_the_machine_held_at_the_step(explained):
    firing = explained.firing
    for number, step in enumerate(explained.steps):
        _at, panels, _focused = played(explained, ["n"] * number)
        row = firing.rows[step.row]
        assert f"{row.registers['pc']:#018x}" in panels["registers"], step.name
        assert explained.words.arch.disassemble(row.code, row.address) in panels["code"]
        stack = firing.stacks[max(at for at in firing.stacks if at <= step.row)]
        word = int.from_bytes(stack.content[:8], "little")
        assert f"{stack.address:#x}" in panels["stack"] and f"{word:#018x}" in panels["stack"]
        assert f"{firing.slot:#x}" in panels["trampoline"]


def test_a_narrow_terminal_has_the_step_alone(explained):
    app = Stepper(explained.title, explained.steps, explained.firing, explained.words)

    async def play():
        async with app.run_test(size=(60, 20)) as pilot:
            await pilot.pause()
            return app.query_one("#panels").display, app.query_one("#step").size.width

    shown_panels, width = asyncio.run(play())
    assert not shown_panels and width > 50


def test_q_ends_it(explained):
    app = Stepper(explained.title, explained.steps, explained.firing, explained.words)

    async def play():
        async with app.run_test() as pilot:
            await pilot.press("q")
            await pilot.pause()
        return app.return_code

    assert asyncio.run(play()) == 0
