"""Tests of ``--tracks``: processes, threads, system calls, interrupts and time off the CPU."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st

from dtrace.run import tracks
from dtrace.run.tracks import TrackWriter
from tests.kinst_emu.commands.test_commands import refused, run


def written(rows, interrupts=("irq",)):
    file = io.BytesIO()
    writer = TrackWriter(file, interrupts)
    for row in rows:
        writer.row(row)
    writer.finish()
    return json.loads(file.getvalue())["traceEvents"]


def row(probe, time, *values, tid=7, pid=3, name="cat", cpu=0):
    return {"probe": probe, "cpu": cpu, "actions": [
        {"action": "trace", "value": value} for value in (time, tid, pid, name, *values)]}


def slices(events):
    """Check that slices are nested; return (process, thread, name, begin, end) for each slice."""
    waiting, found = {}, []
    for event in events:
        key = event["pid"], event.get("tid")
        if event["ph"] == "B":
            waiting.setdefault(key, []).append(event)
        elif event["ph"] == "E":
            begun = waiting[key].pop()
            assert begun["ts"] <= event["ts"]
            found.append((*key, begun["name"], begun["ts"], event["ts"]))
    assert not any(waiting.values())
    return found


def test_a_system_call_slice_contains_the_time_that_its_thread_sleeps():
    found = slices(written([
        row("sched:kernel:none:on-cpu", 500, "cat"),
        row("syscall:freebsd:read:entry", 1001, 3, 4, 5),
        row("fbt:kernel:irq:entry", 1100), row("fbt:kernel:irq:return", 1200),
        row("sched:kernel:none:off-cpu", 2000, "ttyin", 1),
        row("sched:kernel:none:on-cpu", 4000, "cat"),
        row("syscall:freebsd:read:return", 5000, 9, 0)]))
    assert (3, 7, "read", 1.001, 5.0) in found
    assert (3, 7, "off the CPU: ttyin", 2.0, 4.0) in found
    assert (tracks.CPUS, tracks.CPUS + 1, "irq", 1.1, 1.2) in found
    assert [one[2:] for one in found if one[1] == tracks.CPUS] == [
        ("cat (3)", 0.5, 2.0), ("cat (3)", 4.0, 5.0)]


def test_processes_get_their_last_name_and_threads_belong_to_one_process():
    events = written([
        row("syscall:freebsd:execve:entry", 1, 0, 0, 0, name="sh"),
        row("proc:kernel:none:exec-success", 2, name="ls"),
        row("syscall:freebsd:_exit:entry", 3, 0, 0, 0, name="ls"),
        row("syscall:freebsd:fork:return", 9, 0, 0, pid=4)])
    names = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    assert sorted(names) == ["CPUs", "cat (4)", "ls (3)"]
    assert [one[2] for one in slices(events)] == ["_exit", "execve"]


PROBES = st.sampled_from([
    ("sched:kernel:none:on-cpu", ("name",)), ("sched:kernel:none:off-cpu", ("", 1)),
    ("syscall:freebsd:read:entry", (1, 2, 3)), ("syscall:freebsd:read:return", (0, 0)),
    ("syscall:freebsd:fork:return", (0, 0)), ("fbt:kernel:vm_fault_trap:entry", (5,)),
    ("fbt:kernel:vm_fault_trap:return", ()), ("fbt:kernel:irq:entry", ()),
    ("fbt:kernel:irq:return", ()), ("proc:kernel:none:exit", ()),
    ("proc:kernel:none:signal-send", (9, 3))])


@given(st.lists(st.tuples(PROBES, st.integers(0, 3), st.integers(1, 3), st.integers(0, 2))))
def test_slices_are_nested_for_any_sequence_of_firings(firings):
    found = slices(written([
        row(probe, 1000 * n, *values, tid=tid, pid=pid, cpu=cpu)
        for n, ((probe, values), tid, pid, cpu) in enumerate(firings)]))
    begun = sum(1 for (probe, _values), *_rest in firings if probe.startswith(("syscall", "fbt"))
                and probe.endswith("entry"))
    assert len(found) >= begun


def test_events_are_limited_and_omitted_ones_are_counted(monkeypatch):
    monkeypatch.setattr(tracks, "MOST_EVENTS", 3)
    file = io.BytesIO()
    writer = TrackWriter(file, ())
    for n in range(5):
        writer.row(row("syscall:freebsd:read:entry", n, 0, 0, 0))
    for n in range(5, 10):
        writer.row(row("syscall:freebsd:read:return", n, 0, 0))
    writer.finish()
    assert writer.left_out == 2
    assert len(slices(json.loads(file.getvalue())["traceEvents"])) == 3


def test_a_reused_thread_number_starts_without_open_slices():
    found = slices(written([
        row("syscall:freebsd:thr_exit:entry", 1000, 0, 0, 0),
        row("sched:kernel:none:off-cpu", 2000, "", 1),
        row("sched:kernel:none:on-cpu", 8000, "cat"),
        row("syscall:freebsd:read:entry", 8500, 0, 0, 0),
        row("syscall:freebsd:read:return", 9000, 0, 0)]))
    assert [one[2:] for one in found if one[0] == 3] == [("thr_exit", 1.0, 2.0), ("read", 8.5, 9.0)]


def test_incompatible_options_are_refused_with_tracks(tmp_path):
    file = str(tmp_path / "x.json")
    for words, says in ((("--tracks", file), "needs a kernel"),
                        (("--tracks", file, "-n", "BEGIN", "-k", "teaching/amd64"), "leave out"),
                        (("--tracks", file, "-k", "teaching/amd64", "-c", "strlen(\"a\")"),
                         "needs a FreeBSD kernel"),
                        (("--tracks", file, "-l", "-k", "teaching/amd64"), "leave out"),
                        (("--tracks", file, "--stack", "-k", "teaching/amd64"), "leave out")):
        refused(run("kdtrace", *words), says, "dtrace")
    assert not (tmp_path / "x.json").exists()
