"""Tests of paths: what they say about each moment is what a replayed machine has there."""

import random
from itertools import pairwise

import pytest

from dtrace.flow.code import KernelCode
from dtrace.flow.thread_path import PAGE, follow
from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from emu.machine.running_thread import thread_of
from emu.replay.flow import Head
from images.recordings import played
from kinst_emu.cli.flows import stack_of
from tests.kinst_emu.commands.test_commands import run

CALL = 'memcpy(buf(64), "0123456789abcdef", 17)'
MOMENTS = 40


WORKLOADS = [(arch, workload) for arch in ARCHITECTURES for workload in (CALL, "boot")]


@pytest.fixture(scope="module", params=WORKLOADS, ids=lambda pair: f"{pair[0]}-{pair[1][:6]}")
def player(request, tmp_path_factory):
    recording, (arch, workload) = tmp_path_factory.mktemp("path") / "run.rec", request.param
    done = run("kinst", "record", "-k", f"teaching/{arch}", workload, "-o", str(recording))
    assert done.returncode == 0, done.stderr
    return played(recording, None, 10**9, ())


@pytest.fixture(scope="module")
def path(player):
    return whole(player)


def whole(player):
    machine = player.machine
    assert player.seek(player.recording.start.position) is None
    player.give()
    head = Head(machine.arch.name, machine.image.identity, player.position, thread_of(machine),
                stack_of(player))
    return follow(player, KernelCode(machine.image), head, player.recording.last)


def moments(path):
    generator = random.Random(1)
    return sorted({0, len(path.pcs), *(generator.randrange(len(path.pcs) + 1)
                                       for _ in range(MOMENTS))})


def go(player, path, moment):
    """Move the player to a moment; at the end, the registers that the call restores are not yet."""
    assert player.seek(path.position(moment)) is None
    if moment < len(path.pcs):
        player.give()


def register(path, name, moment):
    number, value = path.registers.index(name), path.first[name]
    for at, which, new in path.changes:
        if which == number and at <= moment:
            value = new
    return value


def test_instructions_and_positions_are_those_of_the_replay(player, path):
    for moment in moments(path)[:-1]:
        go(player, path, moment)
        assert player.machine.pc == path.pcs[moment]
        assert player.position.time == path.time(moment)
        assert path.moment(path.position(moment)) == moment


def test_registers_are_those_of_the_replay_at_every_moment(player, path):
    for moment in moments(path):
        go(player, path, moment)
        for name in path.registers:
            assert register(path, name, moment) == player.machine.read_register(name), (
                name, moment)


def test_memory_is_that_of_the_replay_at_every_moment(player, path):
    assert path.pages and path.stores and path.loads
    for moment in moments(path):
        go(player, path, moment)
        for page, content in path.pages.items():
            there = bytearray(content)
            for at, address, stored, _who in path.stores:
                if at <= moment and address & -PAGE == page:
                    there[address % PAGE : address % PAGE + len(stored)] = stored
            now = bytearray(player.machine.read_physical(page, PAGE))
            for address, size in path.outside:
                if address & -PAGE == page:
                    at = address % PAGE
                    there[at : at + size] = now[at : at + size] = bytes(size)
            assert there == now, (hex(page), moment)


def test_virtual_pages_are_mapped_as_in_the_guest(player, path):
    assert player.seek(path.end) is None
    assert path.mapped
    for virtual, physical in path.mapped.items():
        assert player.machine.translate(virtual) == physical


def test_functions_are_nested_and_their_instructions_add_up(path):
    assert sum(frame.own for frame in path.frames) == len(path.pcs)
    assert {frame.name for frame in path.frames} & {"memcpy", "clock_interrupt"}
    for frame in path.frames:
        assert 0 <= frame.begin <= frame.end <= len(path.pcs)
        if frame.parent >= 0:
            around = path.frames[frame.parent]
            assert frame.depth == around.depth + 1
            assert around.begin <= frame.begin and frame.end <= around.end


def test_changes_and_stores_are_in_the_order_of_execution(path):
    for rows in (path.changes, path.stores, path.loads, path.runs):
        assert all(before[0] <= after[0] for before, after in pairwise(rows))


def test_a_window_in_pieces_is_the_same_path(player, path, monkeypatch):
    monkeypatch.setattr("dtrace.flow.steps.CHUNK", max(7, len(path.pcs) // 3))
    again = whole(player)
    assert (again.pcs, again.changes, again.stores, again.loads, again.frames) == (
        path.pcs, path.changes, path.stores, path.loads, path.frames)


def test_a_path_changes_nothing_in_the_recorded_run(player, path):
    assert player.seek(player.recording.last) is None
    before = player.machine.digest()
    whole(player)
    assert player.seek(player.recording.last) is None
    assert player.machine.digest() == before


def test_a_window_that_is_too_long_is_an_error(player, monkeypatch):
    monkeypatch.setattr("dtrace.flow.thread_path.MOST", 10)
    with pytest.raises(KinstError, match="at most 10 can be shown"):
        whole(player)
