"""Data collected during a trace, from which the page of the trace is made."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dtrace.run.structured import Row
from dtrace.stacks.stack import function_of
from kinst.probes.breakpoints import Breakpoints
from kinst.relocation.verdict import summary
from kinst_emu.explain.steps.explained import source_trees, words_of

MAX_FIRINGS = 1_000_000  # maximum number of firings whose times are stored
MAX_STACKS = 20_000  # maximum number of distinct stacks in one flame graph
MAX_FUNCTIONS = 150  # maximum number of functions whose code is shown
MAX_ROWS = 4_000  # maximum number of instructions shown in total


@dataclass(frozen=True)
class HotInstruction:
    """An instruction of a function, with the number of firings of its probe.

    :param source: ``file:line`` of the instruction, and ``line`` the text of this line; each is
        empty if unknown.
    :param count: number of firings of its probe; None: it has no probe.
    """

    offset: int
    address: int
    text: str
    verdict: str
    source: str
    line: str
    count: int | None


@dataclass(frozen=True)
class HotFunction:
    """A function whose probes fired."""

    name: str
    module: str
    count: int
    lines: list[HotInstruction]


@dataclass
class Collected:
    """Data collected during a trace.

    :param kernel: description of the kernel; ``workload``: what it executed.
    :param sources: directory trees with the kernel's source.
    :param times: virtual time of each firing, in ns; ``probes``: the number of its probe.
    :param total: number of firings, including those whose times are not stored.
    :param names: provider:module:function:name of each probe, by number; ``functions``: the name
        of its function.
    :param stacks: counts of stacks of functions, outermost frame first, by flame graph.
    :param fired: number of probes that fired.
    :param code: functions, most firings first; ``left_out``: number of functions not shown.
    """

    kernel: str
    workload: str
    sources: tuple[Path, ...] = ()
    times: "array[int]" = field(default_factory=lambda: array("Q"))
    probes: "array[int]" = field(default_factory=lambda: array("I"))
    total: int = 0
    names: dict[int, str] = field(default_factory=dict)
    functions: dict[int, str] = field(default_factory=dict)
    stacks: dict[str, Counter[tuple[str, ...]]] = field(default_factory=dict)
    stacks_left_out: int = 0
    fired: int = 0
    aggregations: list[Row] = field(default_factory=list)
    code: list[HotFunction] = field(default_factory=list)
    left_out: int = 0

    def firing(self, time: int, probe: int) -> None:
        """Count a firing, and store its time and probe if fewer than ``MAX_FIRINGS`` are stored."""
        self.total += 1
        if len(self.times) < MAX_FIRINGS:
            self.times.append(time)
            self.probes.append(probe)

    def stack(self, counted: str, frames: Sequence[str], count: int = 1) -> None:
        """Count a stack, with each frame reduced to its function.

        :param counted: name of the flame graph.
        :param frames: the frames, innermost first.
        """
        stacks = self.stacks.setdefault(counted, Counter())
        known = tuple(map(function_of, reversed(frames)))
        if known in stacks or len(stacks) < MAX_STACKS:
            stacks[known] += count
        else:
            self.stacks_left_out += 1

    def take(self, breakpoints: Breakpoints) -> None:
        """Collect the firings that the breakpoints' dispatcher has recorded."""
        for number, _cpu, _executed, now, *_registers in breakpoints.dispatcher.records():
            self.firing(now, number)

    def aggregated(self, rows: Sequence[Row]) -> None:
        """Store the final aggregations, and make flame graphs of counts that are keyed by stack."""
        self.aggregations = list(rows)
        for aggregation in rows:
            given = aggregation["rows"]
            if aggregation["function"] != "count":
                continue
            for row in given if isinstance(given, list) else ():
                if not isinstance(row, dict):
                    continue
                keys, value = row["keys"], row["value"]
                for key in keys if isinstance(keys, list) else ():
                    if isinstance(key, list) and key and isinstance(value, int) and value > 0:
                        self.stack(f"{aggregation['aggregation']} = count()",
                                   [str(frame) for frame in key], value)

    def finish(self, breakpoints: Breakpoints) -> None:
        """Collect the names of the probes and the code of the functions that fired."""
        words = words_of(breakpoints.image, source_trees(breakpoints.image, self.sources))
        counts: dict[tuple[str, int], dict[int, int]] = {}
        for number in range(len(breakpoints.probes)):
            address, _code, index, _kind, count, _removed = breakpoints.dispatcher.probe(number)
            if breakpoints.static(number) is not None or breakpoints.program_of(number) is not None:
                self.fired += count > 0
                continue
            function = breakpoints.functions[index]
            known = counts.setdefault((function.name, function.address), {})
            known[address] = max(known.get(address, 0), count)
            self.fired += count > 0
        for number in set(self.probes):
            self.names[number] = ":".join(breakpoints.names(number))
            self.functions[number] = breakpoints.names(number)[2]
        order = sorted((key for key, known in counts.items() if any(known.values())),
                       key=lambda key: -sum(counts[key].values()))
        symbols = {(f.name, f.address): f for f in breakpoints.functions}
        shown = 0
        for key in order[:MAX_FUNCTIONS]:
            function = symbols[key]
            table = breakpoints.instructions(function)
            if shown + len(table) > MAX_ROWS and shown:
                break
            shown += len(table)
            lines = [HotInstruction(i.offset, i.address,
                          breakpoints.arch.disassemble(i.code, i.address), summary(i.verdict),
                          words.source(i.address), words.text(i.address),
                          counts[key].get(i.address))
                     for i in table[:MAX_ROWS]]
            self.code.append(HotFunction(function.name, function.module_name,
                                  sum(counts[key].values()), lines))
        self.left_out = len(order) - len(self.code)
