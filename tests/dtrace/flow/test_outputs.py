"""Tests that independent parsers can read each output format of a recorded flow."""

import io
import itertools
import json
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest

from dtrace.flow.call_tree import CallTree, Node
from dtrace.flow.code import KernelCode
from dtrace.flow.flame_graph import WIDTH, of_threads, svg
from dtrace.flow.outputs import CALLS, FLAME, JSON, PERFETTO, TEXT, TREE, output
from dtrace.flow.steps import steps
from dtrace.flow.walk import Walk
from emu.machine.machine import Until
from emu.machine.running_thread import thread_of
from emu.replay.flow import ENTRY, PIECE, Head, flow
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import BOOT
from kinst.probes.breakpoints import Breakpoints
from kinst.providers.fbt import create
from tests.emu.replay.test_recording import started, use


@pytest.fixture
def played(image, tmp_path):
    machine, path = started(image), tmp_path / "file.rec"
    with Recorder(machine, path, BOOT, "all of it"):
        use(machine)
    return Player(Recording(path), started(image))


def head_of(player):
    machine = player.machine
    return Head(machine.arch.name, machine.image.identity, player.position, thread_of(machine))


def made(player, kind, marks=None, names=None):
    """Write the flow of a whole recording in an output format, and return the written bytes."""
    file = io.BytesIO()
    code = KernelCode(player.machine.image, marks or [])
    out = output(kind, code, head_of(player), file, "kernel", {}, names or [])
    for entries in flow(player, player.recording.last):
        out.take(entries)
    out.finish()
    return file.getvalue()


def fbt_counts(player, names):
    counts = dict.fromkeys(names, 0)

    def fired(probe, *_):
        counts[probe.function] += 1

    breakpoints = Breakpoints(player.machine, fired)
    for name in names:
        create(breakpoints, name, "entry")
    breakpoints.enable()
    player.advance_to_end()
    breakpoints.disable()
    return counts


def total_calls(trees, name):
    waiting, found = list(trees.values()), 0
    while waiting:
        node = waiting.pop()
        found += node.calls * (node.name == name)
        waiting += node.below.values()
    return found


def test_the_call_tree_counts_calls_like_fbt_and_each_instruction_once(image, played):
    tree = CallTree()
    player = Player(played.recording, started(image))
    found = player.machine.image.symbols.find("mi_startup") or (
        player.machine.image.symbols.find("machine_thread"))
    player.run(Until(addresses=[found.address]))
    begin = player.position
    counts = fbt_counts(player, ("strlen", "strcmp"))
    played.seek(begin)
    walk = Walk(KernelCode(played.machine.image), head_of(played), tree)
    for entries in flow(played, played.recording.last):
        walk.follow(entries)
    walk.end()
    trees = tree.finish()
    assert {name: total_calls(trees, name) for name in counts} == counts
    assert counts["strlen"] > 2
    assert sum(t.total for t in trees.values()) == (
        played.recording.last.instructions - begin.instructions)


def perfetto_slices(content, apart=()):
    """Parse a trace with Perfetto's classes and return its slices, instants and tracks.

    Slices are (name, begin, end, depth) and must be nested on each track.

    :param apart: categories whose slices are omitted.
    """
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2",
                                 reason="the package perfetto is not installed")
    trace = protos.Trace()
    trace.ParseFromString(content)
    names, stacks, slices, instants, tracks, categories = {}, {}, [], [], {}, {}
    last = {}
    event = protos.TrackEvent
    for packet in trace.packet:
        for interned in packet.interned_data.event_names:
            assert interned.iid not in names
            names[interned.iid] = interned.name
        categories |= {c.iid: c.name for c in packet.interned_data.event_categories}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        track, time = packet.track_event.track_uuid, packet.timestamp
        assert track in tracks and time >= last.get(track, 0)
        last[track] = time
        stack = stacks.setdefault(track, [])
        if packet.track_event.type == event.TYPE_SLICE_BEGIN:
            (category,) = packet.track_event.category_iids
            stack.append((names[packet.track_event.name_iid], time, categories[category]))
        elif packet.track_event.type == event.TYPE_SLICE_END:
            name, begin, category = stack.pop()
            if category not in apart:
                slices.append((name, begin, time, len(stack)))
        else:
            assert packet.track_event.type == event.TYPE_INSTANT
            instants.append((names[packet.track_event.name_iid], time))
    assert not any(stacks.values())
    return slices, instants, tracks


def test_a_perfetto_trace_has_nested_closed_slices_and_instants(image, played):
    strlen = image.symbols.find("strlen").address
    slices, instants, tracks = perfetto_slices(
        made(played, PERFETTO, [[strlen]], ["kinst::strlen:0"]))
    calls = [s for s in slices if s[0] == "strlen"]
    assert len(calls) == len(instants) > 2
    assert sorted(begin for _name, begin, _end, _depth in calls) == [t for _name, t in instants]
    assert all(begin <= end for _name, begin, end, _depth in slices)
    assert any(d.HasField("thread") for d in tracks.values())
    assert max(depth for *_rest, depth in slices) > 2


PROCESSOR = shutil.which("trace_processor_shell") or shutil.which("trace_processor")


@pytest.mark.skipif(PROCESSOR is None, reason="Perfetto's trace processor is not installed")
def test_the_perfetto_trace_processor_reads_the_trace(played, tmp_path):
    content = made(played, PERFETTO)
    path = tmp_path / "kernel.pftrace"
    path.write_bytes(content)
    slices, _instants, _tracks = perfetto_slices(content)
    done = subprocess.run(
        [PROCESSOR, "-Q", "select count(*) as n from slice where name = 'strlen'", str(path)],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1].strip('"') == str(sum(s[0] == "strlen" for s in slices))


def test_a_flame_graph_is_well_formed_and_its_frames_do_not_overlap(played):
    root = ET.fromstring(made(played, FLAME))
    frames = [g for g in root.iter("{http://www.w3.org/2000/svg}g")]
    assert float(frames[0].get("data-w")) == WIDTH and frames[0].get("data-n") == "all"
    by_level = {}
    for g in frames:
        rect = g.find("{http://www.w3.org/2000/svg}rect")
        by_level.setdefault(rect.get("y"), []).append(
            (float(g.get("data-x")), float(g.get("data-w"))))
    for row in by_level.values():
        row.sort()
        assert all(x + w <= other + 0.02 for (x, w), (other, _) in itertools.pairwise(row))


def test_names_in_a_flame_graph_are_escaped():
    tree = {0: Node("", below={"a<b>&\"c\"": Node("a<b>&\"c\"", 1, 10, 10)}, total=10)}
    root = ET.fromstring("".join(svg(of_threads(tree, {}), "<k>")))
    titles = [one.text for one in root.iter() if one.tag.endswith("}title")]
    assert any('a<b>&"c"' in title for title in titles), titles


def test_json_output_has_one_row_for_each_instruction(image, played):
    rows = [json.loads(line) for line in made(played, JSON).splitlines()]
    assert [row["position"] for row in rows] == list(range(played.recording.last.instructions))
    slow = Player(played.recording, started(image))
    for row in rows[:3000]:
        slow.give()
        assert row["pc"] == slow.machine.pc and row["time"] == slow.position.time
        slow.run(Until(instructions=slow.position.instructions + 1))


def test_text_call_and_tree_outputs_name_functions(played):
    start = played.position
    assert b"strlen+0x0" in made(played, TEXT)
    played.seek(start)
    calls = made(played, CALLS).decode()
    assert "strlen" in calls and "-- thread" in calls
    played.seek(start)
    assert " strlen" in made(played, TREE).decode()


def test_steps_report_the_same_changes_as_single_stepping(image, played):
    last = played.recording.last.instructions
    played.seek(last // 2)
    end_count = min(last, last // 2 + 1500)
    slow = Player(played.recording, started(image))
    slow.seek(end_count)
    end = slow.position
    slow.seek(last // 2)
    pieces = list(steps(played, end, True, True))
    done = [s for piece in pieces if not isinstance(piece, bytes) for s in piece]
    pcs = [value for piece in pieces if isinstance(piece, bytes)
           for value, _count, kind in ENTRY.iter_unpack(piece) if kind == PIECE]
    assert [s.position for s in done] == list(range(last // 2, end_count)) and pcs
    machine = slow.machine
    for step in done:
        slow.give()
        before = machine.registers()
        assert step.pc == machine.pc
        slow.run(Until(instructions=step.position + 1))
        after = machine.registers()
        assert step.registers == {n: v for n, v in after.items()
                                  if v != before[n] and n != machine.arch.pc}
        for address, physical, data in step.stores:
            # Skip stores to device registers.
            if physical < machine.board.ram_base + machine.memory:
                assert machine.read_physical(physical, len(data)) == data
            assert address is None or machine.translate(address) == physical
