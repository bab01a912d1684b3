"""Output of ``-x oformat``: the records as JSON or XML, as dtrace(1) writes them with libxo(3)."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from dtrace.bpf.layout import Aggregate
from dtrace.d.compile.actions import ACTIONS
from dtrace.d.compile.records import Field, Recorded
from dtrace.d.language.types import is_string
from dtrace.run import render
from dtrace.run.aggregations import (
    Entry,
    Part,
    average,
    bounds,
    deviation,
    normalized,
    rows,
    scalar,
)
from dtrace.run.consumer import Consumer, Enabled, memory_of
from dtrace.run.structured import CHANGES, escaped_text

# An instance of a list: leaves and lists by name, in order
Tree = list[tuple[str, "int | str | list[Tree]"]]
SYMBOL = re.compile(r"(?P<module>[^`]+)`(?:(?P<offset>0x[0-9a-f]+)|"
                    r"(?P<name>.+?)(?:\+(?P<inside>0x[0-9a-f]+))?(?: \[inlined\])?)"
                    r"(?:  (?P<line>.*))?", re.DOTALL)
NAMES = {Aggregate.COUNT: "count", Aggregate.SUM: "sum", Aggregate.MIN: "min",
         Aggregate.MAX: "max", Aggregate.AVG: "average", Aggregate.STDDEV: "stddev"}
# Handlers of actions that would spoil the document
IGNORED = ("system", "reopen", "truncate_output")
PRINTABLE = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\n\v\f\r\b\a")


def as_json(tree: Tree) -> str:
    """Return an instance as libxo writes it."""
    out = ""
    for name, value in tree:
        if isinstance(value, list):
            out += (", " if out else "") + f'"{name}": [' + ", ".join(map(as_json, value)) + "]"
        else:
            out += ("," if out else "") + f'"{name}":{json.dumps(value, ensure_ascii=False)}'
    return "{" + out + "}"


def as_xml(tree: Tree) -> str:
    """Return an instance as libxo writes it; an empty list has no element."""
    out = ""
    for name, value in tree:
        for one in value if isinstance(value, list) else [value]:
            content = as_xml(one) if isinstance(one, list) else escape(str(one))
            out += f"<{name}>{content}</{name}>"
    return out


@dataclass
class LibxoOutput(Consumer):
    """Consumer that writes one document for a trace.

    For ``print()``, dtrace(1) describes each member of a structure and gives identifiers of types
    (``ctfid``); here, a structure is the text that is printed without ``-x oformat``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._json = self.options.text("oformat") == "json"
        self._records = 0

    def record(
        self, enabled: Enabled, cpu: int, content: bytes, following: Enabled | None
    ) -> None:
        """Write the instance for a record."""
        probe = enabled.probe
        output: list[Tree] = []
        for action in enabled.function.actions:
            parts = [content[f.offset : f.offset + f.size] for f in action.fields]
            if ACTIONS[action.name].consumer in IGNORED:
                self._failed(enabled, f"{action.name}() has no effect with -x oformat")
            elif ACTIONS[action.name].consumer in CHANGES:
                self._action(enabled, action, content)
            elif action.name == "exit":
                self._exit(enabled, action, parts)
            else:
                output += self._instances(action, parts)
        tree: Tree = [
            ("timestamp", self.time), ("cpu", cpu), ("id", probe.id),
            ("provider", probe.provider), ("module", probe.module), ("function", probe.function),
            ("name", probe.name), ("output", output)]
        self._begin()
        if self._json:
            self.out.write((", " if self._records else "") + as_json(tree))
        else:
            self.out.write(f"<probes>{as_xml(tree)}</probes>")
        self._records += 1

    def rest(self) -> None:
        """End the document; aggregations that no action has printed are left out."""
        self._begin()
        self.out.write("]}}\n" if self._json else "</dtrace>\n")

    def _begin(self) -> None:
        if not self._headed:
            self._headed = True
            self.out.write('{"dtrace": {"probes": [' if self._json else "<dtrace>")

    def _instances(self, action: Recorded, parts: list[bytes]) -> Iterator[Tree]:
        """Yield the instances of an action's output."""
        match action.name:
            case "printf":
                yield [("message", escaped_text(self._text(action, parts)))]
                for field, part in zip(action.fields, parts, strict=True):
                    yield self._recorded(field, part)
                if not parts:  # as dtrace(1), which records a value for each printf()
                    yield [("value", 0)]
            case "printa":
                yield self._printed(action)
            case "tracemem":
                yield [("tracemem", _shown(memory_of(parts)))]
            case "printm":
                size = int.from_bytes(parts[0], "little")
                yield [("printm", _shown(parts[1][:size]))]
            case "print":
                kind = action.fields[0].type
                name = render.typed_name(kind)
                shown = render.Typed(self.symbols).text(parts[0], kind).strip()
                value = (_shown(parts[0]) if is_string(kind)
                         else shown.removeprefix(name).lstrip())
                yield [("type", [[("name", name), ("value", value)]])]
            case _:
                for field, part in zip(action.fields, parts, strict=True):
                    yield self._recorded(field, part)

    def _recorded(self, field: Field, content: bytes) -> Tree:
        return self._datum(field.how, content, is_string(field.type))

    def _datum(self, how: str, content: bytes, text: bool) -> Tree:
        """Return the instance for a value of an action or a key."""
        if how in ("stack", "ustack", "jstack"):
            lines = render.stack(content, self.symbols, 0).split("\n")
            return [("stack-frames" if how == "stack" else "ustack-frames",
                     [_frame(line) for line in lines if line])]
        number = int.from_bytes(content, "little")
        if how != "value":
            return _symbol(how, render.symbolic(how, number, self.symbols).strip())
        if text or len(content) not in (1, 2, 4, 8):
            return [("value", _shown(content))]
        return [("value", int.from_bytes(content, "little", signed=len(content) > 2))]

    def _printed(self, action: Recorded) -> Tree:
        """Return the instance for ``printa()``; its format is ignored, as by dtrace(1)."""
        data: list[Tree] = []
        for key, entries in self.table.joined(action.aggregations, self.order()):
            row: Tree = [("keys", [self._part(part) for part in key])]
            for entry in entries:
                row.append(_aggregated(entry))
            data.append(row)
        self.table.note_printed(action.aggregations)
        return [("aggregation-data", data),
                ("aggregation-name", action.aggregations[0].name.removeprefix("@"))]

    def _part(self, part: Part) -> Tree:
        return self._datum(part.how, part.content.ljust(part.size, b"\0"), part.text)


def _aggregated(entry: Entry) -> tuple[str, "int | str | list[Tree]"]:
    if entry.kind in NAMES:
        found = (average if entry.kind is Aggregate.AVG else deviation
                 if entry.kind is Aggregate.STDDEV else scalar)(entry)
        return NAMES[entry.kind], found
    low = bounds(entry)
    values, last = entry.values[: len(low)], len(low) - 1
    first, end = rows(values, entry.kind)
    buckets: list[Tree] = []
    for number in range(first, end + 1):
        bucket: Tree = [("value", low[number]), ("count", normalized(entry, number))]
        if entry.kind is not Aggregate.QUANTIZE and number in (0, last):
            bucket[0] = "value", low[number or 1]
            bucket.insert(1 if entry.kind is Aggregate.LQUANTIZE else 2,
                          ("operator", ">=" if number else "<"))
        buckets.append(bucket)
    return "buckets", buckets


def _frame(line: str) -> Tree:
    """Return the instance for a line of a stack."""
    found = SYMBOL.fullmatch(line)
    if found is None:
        return [("symbol", line), ("offset", line)]
    tree: Tree = [("symbol", line.partition("  ")[0]), ("module", found["module"])]
    for name, value in (("name", found["name"]), ("offset", found["inside"] or found["offset"]),
                        ("line", found["line"])):
        if value is not None:
            tree.append((name, value))
    return tree


def _symbol(how: str, text: str) -> Tree:
    """Return the instance for the name of an address."""
    if how not in ("sym", "func", "a"):
        return [(how if how in ("mod", "umod") else "usym", text)]
    found = SYMBOL.fullmatch(text)
    if found is None:
        return [("sym", text), ("offset", text)]
    known = ("name", found["name"]) if found["name"] else ("offset", found["offset"])
    return [("sym", text), ("object", found["module"]), known]


def _shown(content: bytes) -> str:
    """Return bytes as a text if they are one, and in hexadecimal otherwise."""
    text, _nul, rest = content.partition(b"\0")
    if (text or not content) and set(text) <= PRINTABLE and not rest.strip(b"\0"):
        return text.decode("ascii")
    return "0x" + content.hex()
