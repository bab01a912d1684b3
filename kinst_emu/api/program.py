"""D programs that a Python program runs on a machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dtrace.d.language.options import OptionError, Options
from dtrace.pipeline import Pipeline, linked
from dtrace.run.session import Session
from dtrace.run.structured import Row
from dtrace.run.target import new_target
from dtrace.run.values import Value
from dtrace.stacks.user_programs import UserPrograms
from emu.host.errors import KinstError
from images.guest_files import guest_files
from images.shell import program_files
from kinst.probes.breakpoints import Breakpoints
from kinst_emu.api.inspected import Inspected
from kinst_emu.api.turn import Turn, in_turn

if TYPE_CHECKING:
    from kinst_emu.notebook.flame_graph import FlameGraph

MAX_KEPT = 1_000_000  # maximum number of records kept
MOST_SHOWN = 50  # maximum number of records or keys displayed


@dataclass(frozen=True)
class Record:
    """Output of one clause at one firing.

    :param probe: full name of the probe, ``provider:module:function:name``.
    :param actions: one object per action, as ``kdtrace --json`` prints them (docs/d.md).
    """

    probe: str
    actions: list[Row] = field(repr=False)

    @property
    def values(self) -> list[Value]:
        """Values of the clause's actions; the value of ``printf`` is the printed text."""
        return [action.get("text", action.get("value", "")) for action in self.actions]


class Program:
    """D program that is enabled until it is closed; a context manager."""

    def __init__(self, machine: Inspected, remove: "Callable[[Program], None]",
                 breakpoints: Breakpoints, source: str, arguments: Sequence[object],
                 options: Mapping[str, object], unsafe: bool, target: str = "",
                 files: Mapping[str, Path] | None = None) -> None:
        self._remove = remove
        self._machine, self._source, self._breakpoints = machine, source, breakpoints
        self._records: list[Record] = []
        self._active = False
        self.printed: list[Row] = []  # output of printa()
        self.errors: list[str] = []  # faults in clauses
        self.messages: list[str] = []  # kdtrace's messages on standard error: faults, drops
        self._session = self._linked(breakpoints, arguments, options, unsafe, target, files or {})

    def _linked(self, breakpoints: Breakpoints, arguments: Sequence[object],
                options: Mapping[str, object], unsafe: bool, target: str,
                files: Mapping[str, Path]) -> Session:
        chosen = Options()
        for name, value in options.items():
            try:
                chosen.set(name, None if value is True else str(value))
            except OptionError as error:
                raise KinstError(f"option '{name}': {error}") from None
        chosen.set("quiet", None)
        traced = new_target(
            breakpoints, self._machine.kernel.prototypes.types(), unsafe,
            UserPrograms(program_files(breakpoints.image), files, guest_files(breakpoints.image),
                         breakpoints.machine.guest.programs.debug_file),
            lambda: target, stops=False)
        return linked(Pipeline(chosen, traced, self.messages.append), self._source,
                      ["program", *map(str, arguments)], self._took,
                      {"target": traced.processes.made_next} if target else {})

    def _took(self, row: Row) -> None:
        if "actions" in row:
            actions = row["actions"]
            if len(self._records) < MAX_KEPT and isinstance(actions, list):
                self._records.append(Record(
                    str(row["probe"]), [a for a in actions if isinstance(a, dict)]))
        elif "printa" in row:
            self.printed.append(row)
        elif "error" in row:
            self.errors.append(str(row.get("error")))

    def _look(self) -> None:
        if self._active and not self._machine.emulated.running:
            self._session.look()

    @property
    def turn(self) -> Turn:
        """Lock of the traced machine."""
        return self._machine.turn

    @property
    @in_turn
    def records(self) -> list[Record]:
        """Records of the firings so far, at most the first million.

        While the machine runs, the most recent records may be missing.
        """
        self._look()
        return self._records

    @property
    @in_turn
    def aggregations(self) -> dict[str, dict[tuple[Value, ...], Value]]:
        """Values of the aggregations, keyed first by aggregation name and then by aggregation key.

        A value is a number, or the list of the non-empty buckets of a distribution, like
        ``{"from": 64, "count": 2}``.
        """
        self._look()
        by_name: dict[str, dict[tuple[Value, ...], Value]] = {}
        for row in self._session.aggregated():
            rows = row["rows"]
            assert isinstance(rows, list)
            by_name[str(row["aggregation"])] = {
                _key(entry["keys"]): entry["value"] for entry in rows if isinstance(entry, dict)}
        return by_name

    @property
    @in_turn
    def firings(self) -> int:
        """Number of firings of all kernel probes since the program was enabled.

        Firings of the probes that Python has enabled count, too.
        """
        return self._breakpoints.dispatcher.firings

    @property
    @in_turn
    def ended(self) -> bool:
        """Whether the program has called ``exit()``, which ends the tracing."""
        return self._session.stopped

    @property
    @in_turn
    def status(self) -> int:
        """Exit status that the program passed to ``exit()``."""
        return self._session.consumer.status

    def begin(self) -> None:
        """Enable the probes; called by ``Machine.trace``."""
        self._session.begin()
        self._active = True

    def end(self) -> None:
        """Disable the probes; called by ``close``."""
        self._session.end()
        self._active = False

    def moved(self) -> None:
        """Restart the timers after the machine's virtual time has jumped."""
        self._session.moved()

    def close(self) -> None:
        """End the trace: END fires, and the aggregations are complete.

        If another thread is using the machine, this waits for it.
        """
        with self._machine.turn.waited():
            self._remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<D program: {len(self._records)} records>"


    # -- in IPython -------------------------------------------------------------------------------

    def flame_graph(self, name: str = "@") -> "FlameGraph":
        """Return a flame graph of an aggregation that is keyed by stack.

        :raises KinstError: when the program has no such aggregation.
        """
        from kinst_emu.notebook.flame_graph import FlameGraph

        stacks = dict[tuple[str, ...], int]()
        for key, count in self.aggregations.get(name, {}).items():
            stack_parts = [part for part in key
                     if isinstance(part, Sequence) and not isinstance(part, str)]
            if stack_parts and isinstance(count, int):
                stacks[tuple(str(line) for line in stack_parts[0])] = count
        if not stacks:
            raise KinstError(f"{name}: not an aggregation of counts by stack(); the aggregations "
                             f"are: {', '.join(self.aggregations) or 'none'}")
        return FlameGraph(name, stacks)

    def _lines(self) -> list[str]:
        rows = [f"{record.probe}  {'  '.join(map(str, record.values))}".rstrip()
                for record in self.records[:MOST_SHOWN]]
        if len(self.records) > MOST_SHOWN:
            rows.append(f"... and {len(self.records) - MOST_SHOWN} more records")
        for name, values in self.aggregations.items():
            rows += [name, *(f"  {' '.join(str(part) for part in key)}  {value}"
                             for key, value in list(values.items())[:MOST_SHOWN])]
        return [*rows, *self.errors]

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text("\n".join([repr(self), *self._lines()]))

    def _repr_html_(self) -> str:
        from kinst_emu.notebook import html

        parts = [html.text([repr(self), *self.errors])]
        if self.records:
            parts.append(html.table(("probe", "values"), (
                (record.probe, "  ".join(map(str, record.values))) for record in self.records)))
        return "".join([*parts, *(html.aggregation(name, values)
                                  for name, values in self.aggregations.items())])


def _key(parts: Value) -> tuple[Value, ...]:
    """Return an aggregation key as a hashable tuple, with stacks as tuples."""
    assert isinstance(parts, list)
    return tuple(tuple(part) if isinstance(part, list) else part  # type: ignore[misc]
                 for part in parts)
