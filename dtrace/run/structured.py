"""Consumer that outputs objects instead of text, for ``kdtrace --json`` and for Python programs."""

import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from dtrace.d.compile.actions import ACTIONS
from dtrace.d.compile.records import Recorded
from dtrace.run import render, values
from dtrace.run.aggregations import Entry
from dtrace.run.consumer import Consumer, Enabled, Failure, memory_of
from dtrace.run.render import Symbols
from dtrace.run.values import Value

Row = dict[str, Value]
# Handlers of actions that have no value in the output
CHANGES = ("changed", "set_option", "reopen", "system", "truncate_output")


def escaped_text(text: str) -> str:
    """Return a text whose bytes that are not UTF-8 are escapes such as ``\\xff``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def ignore(_row: Row) -> None:
    """Discard an object."""
    pass


@dataclass
class Structured(Consumer):
    """Consumer that outputs objects instead of text.

    :param sink: callback that receives each object; docs/d.md describes the objects.
    """

    sink: Callable[[Row], None] = field(default=ignore)

    def record(
        self, enabled: Enabled, cpu: int, content: bytes, following: Enabled | None
    ) -> None:
        """Output the object for a record."""
        probe = enabled.probe
        later: list[Row] = []
        done: list[Value] = []
        for action in enabled.function.actions:
            parts = [content[f.offset : f.offset + f.size] for f in action.fields]
            if action.name == "printa":
                later.append(self._printed(action))
            elif ACTIONS[action.name].consumer in CHANGES:
                self._action(enabled, action, content)
            else:
                done.append(self._object(enabled, action, parts))
        self.sink({"probe": probe.text, "id": probe.id, "cpu": cpu, "actions": done})
        for row in later:
            self.sink(row)

    def _object(self, enabled: Enabled, action: Recorded, parts: list[bytes]) -> Row:
        converted = values.all_recorded(action.fields, parts, self.symbols)
        row: Row = {"action": action.name}
        if action.name == "printf":
            return row | {"text": escaped_text(self._text(action, parts)), "arguments": converted}
        if action.name == "tracemem":
            return row | {"value": memory_of(parts).hex()}
        if action.name == "printm":
            return row | {"value": parts[1][: int.from_bytes(parts[0], "little")].hex()}
        if action.name == "exit":
            self._exit(enabled, action, parts)
        if action.name == "print":
            row["type"] = render.typed_name(action.fields[0].type)
        if not converted:
            return row
        return row | {"value": converted[0] if len(converted) == 1 else converted}

    def _system(self, enabled: Enabled, action: Recorded, values_: list[bytes]) -> None:
        """Run a command, and output an object with the command's output."""
        command = self._text(action, values_).partition("\0")[0]
        shown = os.fsencode(command).decode("utf-8", "backslashreplace")
        if self.shell is not None:
            self.sink({"system": shown})
            self.shell(command)
            return
        done = subprocess.run(os.fsencode(command), shell=True, check=False,
                              stdout=subprocess.PIPE)
        self.sink({"system": shown, "output": done.stdout.decode("utf-8", "backslashreplace")})

    def _reopen(self, enabled: Enabled, action: Recorded, values_: list[bytes]) -> None:
        self._failed(enabled, "freopen() has no effect if objects are printed instead of text")

    def _truncate_output(self, _e: Enabled, _action: Recorded, _values: list[bytes]) -> None:
        """Do nothing, because there is no text to truncate."""

    def _printed(self, action: Recorded) -> Row:
        """Return an object for ``printa()``, with its text and the values of the aggregations."""
        rows: list[Value] = []
        lines: list[Value] = []
        for parts, entries in self.table.joined(action.aggregations, self.order()):
            row: Row = {"keys": values.keys(entries[0], self.symbols),
                        "values": [values.aggregated(entry) for entry in entries]}
            rows.append(row)
            lines.append(self._line(parts, entries) if action.format is None
                         else self._formatted_line(action, parts, entries))
        if rows:
            self.table.note_printed(action.aggregations)
        return {"printa": [shown_name(info.name) for info in action.aggregations], "text": lines,
                "rows": rows}

    def rest(self) -> None:
        """At the end of a trace, output the aggregations that no action has printed."""
        for row in aggregations(self, self.table.printed):
            self.sink(row)

    def failure(self, found: Failure) -> None:
        """Report a fault on standard error, and output an object for the fault."""
        super().failure(found)
        probe = found.enabled.probe.text if found.enabled is not None else ""
        self.sink({"error": self.fault(found), "probe": probe})


def aggregations(consumer: Consumer, without: Collection[int] = (), empty: bool = False
                 ) -> list[Row]:
    """Return an object for each aggregation that is not empty.

    :param without: origins of the keys to omit.
    :param empty: whether to include empty buckets of distributions; see ``values.buckets``.
    """
    by_aggregation: dict[int, list[Entry]] = {}
    for entry in consumer.table.sorted(consumer.order()):
        if entry.origin not in without:
            by_aggregation.setdefault(entry.info.number, []).append(entry)
    return [_aggregation(found, consumer.symbols, empty) for found in by_aggregation.values()]


def _aggregation(entries: Sequence[Entry], symbols: Symbols, empty: bool) -> Row:
    """Return the object for an aggregation that is not empty."""
    info = entries[0].info
    assert info.function is not None
    rows: list[Value] = [{"keys": values.keys(entry, symbols),
                          "value": values.aggregated(entry, empty)} for entry in entries]
    return {"aggregation": shown_name(info.name), "function": info.function.name, "rows": rows}


def shown_name(name: str) -> str:
    """Return an aggregation's name as written in programs; ``@`` is stored as ``@_``."""
    return "@" if name in ("_", "@_") else "@" + name.removeprefix("@")
