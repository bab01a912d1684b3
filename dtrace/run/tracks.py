"""Timeline of a kernel and its programs in the format of Chrome's trace viewer.

Each thread has a track with its system calls, page faults, and the time that it was off the CPU;
each CPU has a track with its running threads, and one with its interrupts.

The format is the "Trace Event Format", which https://ui.perfetto.dev reads; times are virtual.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

MOST_EVENTS = 1 << 24
CPUS = 1 << 24  # process ID that represents the CPUs in the file
OFF = "off the CPU"
WHO = "trace(timestamp); trace(tid); trace(pid); trace(execname);"


def tracks_program(interrupts: Sequence[str]) -> str:
    """Return the D program whose output a ``TrackWriter`` converts.

    :param interrupts: functions that handle interrupts.
    """
    handlers = {end: ",".join(f"fbt::{name}:{end}" for name in interrupts)
                for end in ("entry", "return")}
    return f"""
        sched:::on-cpu {{ {WHO} trace(stringof(curthread->td_name)); }}
        sched:::off-cpu {{ {WHO}
            trace(curthread->td_wmesg == NULL ? "" : stringof(curthread->td_wmesg));
            trace(curthread->td_state == TDS_INHIBITED); }}
        syscall:::entry {{ {WHO} trace(arg0); trace(arg1); trace(arg2); }}
        syscall:::return {{ {WHO} trace(arg1); trace(errno); }}
        fbt::vm_fault_trap:entry {{ {WHO} trace(arg1); }}
        fbt::vm_fault_trap:return {{ {WHO} }}
        proc:::exec-success, proc:::exit {{ {WHO} }}
        proc:::signal-send {{ {WHO} trace(arg2); trace(args[1]->p_pid); }}
        {handlers["entry"]} {{ {WHO} }}
        {handlers["return"]} {{ {WHO} }}
    """


@dataclass
class _Track:
    """A track of nested slices, for one thread or for the threads or interrupts of one CPU.

    :param open: keys of the slices that have begun, and whether they were written.
    :param ends: whether the thread is about to end.
    """

    process: int
    number: int
    open: list[tuple[str, bool]] = field(default_factory=list)
    name: str = ""
    ends: bool = False


class TrackWriter:
    """Writer of a timeline file: ``row`` adds a row of a trace, ``finish`` completes the file.

    :param interrupts: functions that handle interrupts.
    """

    def __init__(self, file: IO[bytes], interrupts: Sequence[str]) -> None:
        self._file, self._interrupts = file, frozenset(interrupts)
        self._threads: dict[int, _Track] = {}
        self._processes: dict[int, str] = {}
        self._cpus: dict[int, tuple[_Track, _Track]] = {}
        self._events = self.left_out = self._latest = 0
        self._file.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')

    def row(self, row: Mapping[str, object]) -> None:
        """Add a firing, in the format of ``--json``."""
        probe, actions = row.get("probe"), row.get("actions")
        if not isinstance(probe, str) or not isinstance(actions, list):
            return
        _provider, _module, function, name = probe.split(":", 3)
        values = [action.get("value") for action in actions]
        time, thread, process, program_name, *more = values
        cpu = row.get("cpu")
        assert isinstance(time, int) and isinstance(thread, int) and isinstance(process, int)
        assert isinstance(cpu, int)
        self._latest = max(self._latest, time)
        self._processes[process] = str(program_name)
        track = self._thread(thread, process)
        track.ends |= function == "thr_exit" or (probe.startswith("proc:") and name == "exit")
        if name == "on-cpu":
            self._named(track, str(more[0]))
            self._end(track, time, OFF)
            self._runs(cpu, time, f"{more[0]} ({process})")
        elif name == "off-cpu":
            message, waits = more
            if track.ends:
                self._end_all(track, time)
                track.ends = False
            else:
                why = (f": {message}" if message and waits else ": waiting" if waits
                       else ": runnable")
                self._begin(track, time, OFF, OFF + why, {})
            self._runs(cpu, time, "")
        elif function == "vm_fault_trap" or probe.startswith("syscall"):
            shown = "page fault" if function == "vm_fault_trap" else function
            if name == "entry":
                self._begin(track, time, shown, shown, {
                    f"arg{n}": f"{value % (1 << 64):#x}" if isinstance(value, int) else value
                    for n, value in enumerate(more)})
            else:
                self._end(track, time, shown, dict(zip(("returns", "errno"), more, strict=False)))
        elif function in self._interrupts:
            handled = self._cpu(cpu)[1]
            if name == "entry":
                where = f"{program_name} ({process})"
                self._begin(handled, time, function, function, {"in": where})
            else:
                self._end(handled, time, function)
        else:
            what = {"signal": more[0], "to": more[1]} if more else {}
            self._event("i", time, track, name=name, s="t", args=what)

    def finish(self) -> None:
        """End the open slices, write the names of processes, and complete the file."""
        for track in (*self._threads.values(), *(t for pair in self._cpus.values() for t in pair)):
            self._end_all(track, self._latest)
        for process, name in self._processes.items():
            self._meta("process_name", process, 0, f"{name} ({process})")
        self._meta("process_name", CPUS, 0, "CPUs")
        self._file.write(b'{"ph": "M", "name": "process_sort_index", "pid": %d, "args": '
                         b'{"sort_index": -1}}\n]}\n' % CPUS)

    def _thread(self, thread: int, process: int) -> _Track:
        track = self._threads.get(thread)
        if track is None or track.process != process:  # the kernel may have reused the thread ID
            if track is not None:
                self._end_all(track, self._latest)
            track = self._threads[thread] = _Track(process, thread)
        return track

    def _cpu(self, cpu: int) -> tuple[_Track, _Track]:
        """Return the two tracks of a CPU: running threads and interrupts."""
        if cpu not in self._cpus:
            self._cpus[cpu] = _Track(CPUS, CPUS + 2 * cpu), _Track(CPUS, CPUS + 2 * cpu + 1)
            for track, name in zip(self._cpus[cpu], ("", " interrupts"), strict=True):
                self._meta("thread_name", CPUS, track.number, f"CPU {cpu}{name}")
        return self._cpus[cpu]

    def _runs(self, cpu: int, time: int, name: str) -> None:
        track = self._cpu(cpu)[0]
        if track.open:
            self._end_all(track, time)
        if name:
            self._begin(track, time, name, name, {})

    def _named(self, track: _Track, name: str) -> None:
        if name != track.name:
            track.name = name
            self._meta("thread_name", track.process, track.number, name)

    def _begin(self, track: _Track, time: int, key: str, name: str, arguments: Mapping[str, object]
               ) -> None:
        track.open.append((key, self._event("B", time, track, name=name, args=arguments)))

    def _end_all(self, track: _Track, time: int) -> None:
        while track.open:
            if track.open.pop()[1]:
                self._event("E", time, track)

    def _end(self, track: _Track, time: int, key: str, arguments: Mapping[str, object] | None = None
             ) -> None:
        """End a slice and its nested slices; ignore a slice that began before the trace."""
        if not any(open_key == key for open_key, _written in track.open):
            return
        while track.open:
            open_key, written = track.open.pop()
            if written:
                ends = open_key == key and arguments
                self._event("E", time, track, **({"args": arguments} if ends else {}))
            if open_key == key:
                return

    def _event(self, phase: str, time: int, track: _Track, **more: object) -> bool:
        """Write an event, and return whether it was written.

        If the file has too many events, only the ends of slices are written.
        """
        if self._events >= MOST_EVENTS and phase != "E":
            self.left_out += 1
            return False
        self._events += 1
        row = {"ph": phase, "pid": track.process, "tid": track.number, **more}
        # Microseconds with three decimals, because binary fractions would not be exact.
        text = json.dumps(row)[:-1] + f', "ts": {time // 1000}.{time % 1000:03}}},\n'
        self._file.write(text.encode())
        return True

    def _meta(self, what: str, process: int, thread: int, name: str) -> None:
        row = {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
        self._file.write((json.dumps(row) + ",\n").encode())
