"""Consumer of a trace: prints records, formatted text, aggregations and messages."""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from dtrace.bpf.interpreter import divide, signed
from dtrace.bpf.layout import Aggregate, Fault
from dtrace.d.compile.actions import ACTIONS, STACKS
from dtrace.d.compile.clauses import ClauseFunction
from dtrace.d.compile.program import ListedProbe
from dtrace.d.compile.records import Field, Recorded
from dtrace.d.language.formats import Conversion
from dtrace.d.language.identifiers import AggregationInfo
from dtrace.d.language.options import OptionError, Options
from dtrace.d.language.types import LONG, UNSIGNED_LONG
from dtrace.run import render
from dtrace.run.aggregations import (
    AggregationTable,
    Entry,
    Order,
    Part,
    Scale,
    average,
    bounds,
    distribution,
    scalar,
    symbol,
)
from dtrace.run.render import ConvertedValue, Symbols, Typed
from emu.host.append_file import appending

MOST_POWER = 10**18  # greatest power of ten that a 64-bit number can hold
FAULTS = {
    Fault.BAD_ADDRESS: "invalid address", Fault.BAD_ALIGNMENT: "invalid alignment",
    Fault.ILLEGAL_OPERATION: "illegal operation", Fault.DIVIDE_BY_ZERO: "divide-by-zero",
    Fault.NO_SCRATCH: "out of scratch space", Fault.KERNEL_PRIVILEGES: "invalid kernel access",
    Fault.USER_PRIVILEGES: "invalid user access", Fault.TUPLE_OVERFLOW: "tuple stack overflow",
    Fault.BAD_STACK: "bad stack",
    Fault.NOT_KEPT: "unavailable argument"}
WITH_VALUE = (Fault.BAD_ADDRESS, Fault.BAD_ALIGNMENT, Fault.BAD_STACK)
UNSIGNED_LETTERS = ("o", "p", "u", "x", "X")  # of conversions
DISTRIBUTIONS = (Aggregate.QUANTIZE, Aggregate.LQUANTIZE, Aggregate.LLQUANTIZE)


@dataclass(frozen=True)
class Enabled:
    """An enabled clause of one probe; records contain the number of the clause."""

    number: int
    function: ClauseFunction
    probe: ListedProbe


@dataclass(frozen=True)
class Failure:
    """A fault in a clause, queued among the records in order of occurrence.

    :param enabled: the clause, or None if it is unknown.
    :param number: number of the clause.
    :param value: the invalid address, for the faults in ``WITH_VALUE``.
    :param action: number of the action, from 1; 0 for the predicate.
    :param at: index of the BPF instruction; None: the fault occurred while the action's value was
        stored, after the action's own code.
    """

    enabled: Enabled | None
    number: int
    fault: int
    value: int
    action: int
    at: int | None


def memory_of(values: Sequence[bytes]) -> bytes:
    """Return the memory that ``tracemem()`` shows, whose size may be among its values."""
    size = int.from_bytes(values[1], "little") if len(values) > 1 else 0
    return values[0][:size] if 0 < size <= len(values[0]) else values[0]


# arguments: clause, action, values of the action's fields
Handler = Callable[[Enabled, Recorded, list[bytes]], None]


@dataclass
class Consumer:
    """Consumer that prints the output of a trace, as dtrace(1) does.

    :ivar time: time of the record that is being printed, in nanoseconds.
    :param out: stream for the output.
    :param say: prints a message, given without the prefix ``dtrace: ``, on standard error.
    """

    options: Options
    symbols: Symbols
    out: IO[str]
    say: Callable[[str], None]
    table: AggregationTable = field(default_factory=AggregationTable)
    status: int = 0

    def __post_init__(self) -> None:
        self.other: IO[str] | None = None
        self.time = 0
        # Callback that runs a ``system()`` command in the guest, or None to run it on the host.
        self.shell: Callable[[str], None] | None = None
        self.rehearses = False  # whether this is a run in advance, which writes no files
        self._headed = False
        self._indent = 0
        self._last: Enabled | None = None
        self._by_name: dict[str, Handler] = {
            name: getattr(self, f"_{action.consumer}") for name, action in ACTIONS.items()
            if action.consumer}

    # -- output ------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether the option ``quiet`` is set."""
        return self.options.given("quiet")

    def write(self, text: str) -> None:
        """Write the output of an action to ``out``, or to the file that ``freopen()`` opened."""
        (self.other or self.out).write(text)

    def record(
        self, enabled: Enabled, cpu: int, content: bytes, following: Enabled | None
    ) -> None:
        """Print a record as a row.

        :param cpu: number of the CPU on which the probe fired.
        :param following: clause of the next record, or None if there is none.
        """
        self._header()
        flow = self.options.given("flowindent")
        if flow:
            self._flow(enabled, cpu, following)
        elif not self.quiet:
            probe = enabled.probe
            name = f"{probe.function}:{probe.name}"
            self.out.write(f"{cpu:3d} {probe.id:6d} {name:>32} ")
        for action in enabled.function.actions:
            self._action(enabled, action, content)
        if not self.quiet:
            self.out.write("\n")
        self._last = enabled

    def _header(self) -> None:
        if self._headed:
            return
        self._headed = True
        if self.options.given("flowindent"):
            self.out.write(f"{'CPU':>3} {'FUNCTION':<41}\n")
        elif not self.quiet:
            self.out.write(f"{'CPU':>3} {'ID':>6} {'FUNCTION:NAME':>32}\n")

    def _flow(self, enabled: Enabled, cpu: int, following: Enabled | None) -> None:
        probe, last = enabled.probe, self._last
        entry = probe.name == "entry" or probe.name.endswith("-entry")
        leave = probe.name == "return" or probe.name.endswith("-return")
        if entry and last is not None and last.number != enabled.number and last.probe == probe:
            entry = False
        if leave and following is not None and following.number != enabled.number \
                and following.probe == probe:
            leave = False
        call = probe.provider == "syscall"
        if leave and self._indent > 0:
            self._indent -= 2
        mark = (" => " if call else " -> ") if entry else (" <= " if call else " <- ") if leave \
            else " | "
        if not entry and not leave:
            mark = "| "
        name = probe.function if entry or leave else f"{probe.function}:{probe.name}"
        self.out.write(f"{cpu:3d} {' ' * self._indent + mark + name:<41} ")
        if entry:
            self._indent += 2

    def _action(self, enabled: Enabled, action: Recorded, content: bytes) -> None:
        values = [content[f.offset : f.offset + f.size] for f in action.fields]
        self._by_name[action.name](enabled, action, values)

    # -- handlers of actions; ``consumer`` in ``dtrace/d/compile/actions.py`` selects them ---------

    def _stack(self, _e: Enabled, _action: Recorded, values: list[bytes]) -> None:
        self.write(render.stack(values[0], self.symbols, self.options.number("stackindent")))

    def _symbol(self, _e: Enabled, action: Recorded, values: list[bytes]) -> None:
        value = int.from_bytes(values[0], "little")
        self.write(render.symbolic(action.name, value, self.symbols))

    def _traced(self, _e: Enabled, _action: Recorded, values: list[bytes]) -> None:
        self.write(render.traced(values[0], self.quiet, self.options.given("rawbytes")))

    def _typed(self, _e: Enabled, action: Recorded, values: list[bytes]) -> None:
        self.out.write(Typed(self.symbols).text(values[0], action.fields[0].type))

    def _memory(self, _e: Enabled, action: Recorded, values: list[bytes]) -> None:
        self.write(render.dump(memory_of(values)))

    def _reference(self, _e: Enabled, _action: Recorded, values: list[bytes]) -> None:
        self.write(render.dump(values[1][: int.from_bytes(values[0], "little")]))

    def _arguments(self, fields: Sequence[Field], values: Sequence[bytes]) -> list[ConvertedValue]:
        return [ConvertedValue(value, f.type, f.how)
                for f, value in zip(fields, values, strict=True)]

    def _text(self, action: Recorded, values: list[bytes]) -> str:
        return render.formatted(
            action.format or [], self._arguments(action.fields, values), self.symbols)

    def _formatted(self, _e: Enabled, action: Recorded, values: list[bytes]) -> None:
        self.write(self._text(action, values))

    def _exit(self, _e: Enabled, _action: Recorded, values: list[bytes]) -> None:
        self.status = int.from_bytes(values[0], "little", signed=True)

    # -- actions that change the consumer ----------------------------------------------------------

    def _failed(self, enabled: Enabled, text: str) -> None:
        probe = enabled.probe
        self.say(f"error on enabled probe ID {enabled.number} (ID {probe.id}: {probe.text}): "
                 f"{text}\n")

    def _set_option(self, enabled: Enabled, _action: Recorded, values: list[bytes]) -> None:
        name, value = (v.split(b"\0")[0].decode(errors="surrogateescape")
                       for v in (values if len(values) > 1 else [*values, b"1"]))
        try:
            self.options.set(name, value)
        except OptionError as error:
            self._failed(enabled, f'couldn\'t set option "{name}" to "{value}": {error}')

    def _reopen(self, enabled: Enabled, action: Recorded, values: list[bytes]) -> None:
        name = self._text(action, values).partition("\0")[0]
        self.close_other()
        if not name or self.rehearses:
            return
        try:
            self.other = appending(name, "surrogateescape")
        except OSError as error:
            self._failed(enabled, f'couldn\'t freopen() "{name}": {error.strerror}')

    def close_other(self) -> None:
        """Flush and close the file that ``freopen()`` opened, if any."""
        other, self.other = self.other, None
        if other is not None:
            other.close()

    def _system(self, _e: Enabled, action: Recorded, values: list[bytes]) -> None:
        self.out.flush()
        command = self._text(action, values).partition("\0")[0]
        if self.shell is not None:
            self.shell(command)
            return
        subprocess.run(os.fsencode(command), shell=True, check=False)

    def _truncate_output(self, _e: Enabled, _action: Recorded, _values: list[bytes]) -> None:
        self.out.flush()
        try:
            self.out.seek(0)
            self.out.truncate()
        except (OSError, ValueError):
            return  # a terminal or a pipe cannot be truncated

    def _changed(self, _e: Enabled, action: Recorded, values: list[bytes]) -> None:
        info = action.aggregations[0]
        numbers = [int.from_bytes(v, "little", signed=True) for v in values]
        if action.name == "clear":
            self.table.clear(info)
        elif action.name == "trunc":
            self.table.truncate(info, numbers[0] if numbers else 0)
        else:
            # As in dtrace(1), the divisor is unsigned, and has the size of its type.
            self.table.normalize(info, int.from_bytes(values[0], "little") if values else 1)

    # -- aggregations ------------------------------------------------------------------------------

    def order(self) -> Order:
        """Return the sort order that the options select for aggregations."""
        given, number = self.options.given, self.options.number
        return Order(given("aggsortkey"), given("aggsortrev"), number("aggsortkeypos"),
                     number("aggsortpos"))

    def _aggregations(self, _e: Enabled, action: Recorded, _values: list[bytes]) -> None:
        infos = action.aggregations
        printed = False
        if action.format is None and len(infos) == 1 and self._packed(infos[0]):
            self.write("\n")
            printed = self._hist(self.table.sorted(self.order(), infos[0]))
        else:
            if action.format is None:
                self.write("\n")
            for key, entries in self.table.joined(infos, self.order()):
                printed = True
                if action.format is None:
                    self.write(self._line(key, entries))
                else:
                    self.write(self._formatted_line(action, key, entries))
        if printed:
            self.table.note_printed(infos)

    def _formatted_line(self, action: Recorded, key: Sequence[Part], entries: list[Entry]) -> str:
        arguments = []
        shape = entries[0].shape
        assert shape is not None
        for part, (kind, how, _size) in zip(key, shape.parts, strict=True):
            arguments.append(
                ConvertedValue(part.content, kind, how if how != "jstack" else "ustack"))
        waiting = list(entries)

        def value(conversion: Conversion) -> str:
            entry = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            return self._value(entry, conversion)

        return render.formatted(action.format or [], arguments, self.symbols, value)

    def _value(self, entry: Entry, conversion: Conversion) -> str:
        if entry.kind in DISTRIBUTIONS:
            return self._picture(entry)
        unsigned = entry.kind is Aggregate.COUNT
        if entry.kind is Aggregate.AVG:
            count, total = entry.values
            result = total % (1 << 64) // entry.normal // count if count else 0
        elif entry.kind is Aggregate.STDDEV:
            result = scalar(entry)
        elif conversion.name.endswith(UNSIGNED_LETTERS):
            result = entry.values[0] % (1 << 64) // entry.normal
        else:
            result = divide(entry.values[0], signed(entry.normal))
        content = (result % (1 << 64)).to_bytes(8, "little")
        return render.integer(conversion.name, conversion.flags, conversion.width,
                              conversion.precision, content, UNSIGNED_LONG if unsigned else LONG)

    def _picture(self, entry: Entry) -> str:
        return distribution(entry, self.options.given("aggzoom"),
                            self.options.text("encoding") == "utf8")

    def _line(self, key: Sequence[Part], entries: Sequence[Entry]) -> str:
        out = [self._key(part) for part in key]
        for entry in entries:
            if entry.kind in DISTRIBUTIONS:
                out.append(self._picture(entry))
            else:
                value = average(entry) if entry.kind is Aggregate.AVG else scalar(entry)
                out.append(f" {value:16d}")
        return "".join(out) + "\n"

    def _key(self, part: Part) -> str:
        if part.how in STACKS:
            return render.stack(part.content, self.symbols, self.options.number("stackindent"))
        if part.how != "value":
            return render.symbolic(part.how, part.number, self.symbols)
        raw = self.options.given("rawbytes")
        if part.text:
            whole = part.content.ljust(part.size, b"\0")
            return render.traced(whole, False, raw, render.KEY_WIDTH)
        return render.traced(part.content, False, raw, render.KEY_WIDTH)

    def _packed(self, info: AggregationInfo) -> bool:
        """Return whether the option ``agghist`` or ``aggpack`` applies to an aggregation."""
        assert info.function is not None
        name = info.function.name
        return (self.options.given("agghist") and name in ("count", "sum")) or (self.options.given(
            "aggpack") and name in ("quantize", "lquantize"))

    def rest(self) -> None:
        """At the end of a trace, print the aggregations that no action has printed."""
        self.out.write("\n")
        by_number: dict[int, list[Entry]] = {}
        for entry in self.table.sorted(self.order()):
            if entry.origin not in self.table.printed:
                by_number.setdefault(entry.info.number, []).append(entry)
        for entries in by_number.values():
            if self._packed(entries[0].info):
                self._hist(entries)
            else:
                for entry in entries:
                    self.write(self._line(entry.key, [entry]))

    def _hist(self, entries: list[Entry]) -> bool:
        """Print the entries for ``agghist`` or ``aggpack``, and return whether there are any."""
        if not entries:
            return False
        if entries[0].kind in DISTRIBUTIONS:
            self._packs(entries)
        else:
            self._bars(entries)
        return True

    @staticmethod
    def _widths(entry: Entry) -> list[int]:
        sizes = {1: 3, 2: 5, 4: 8, 8: 16}
        return [sizes.get(part.size, 16) for part in entry.key]

    def _heads(self, entry: Entry) -> str:
        """Format the key of a row; the type of each element determines the width of its column."""
        out = []
        for part, wide in zip(entry.key, self._widths(entry), strict=True):
            if part.how != "value":
                out.append(self._key(part))
                continue
            whole = part.content.ljust(part.size, b"\0")
            if part.size not in (1, 2, 4, 8):
                out.append(render.octets(whole, False, self.options.given("rawbytes"), -16))
            else:
                value = int.from_bytes(whole, "little", signed=part.size >= 4)
                out.append(f" {value:{wide}d}")
        return "".join(out)

    def _bars(self, entries: list[Entry]) -> None:
        zoom = self.options.given("aggzoom")
        values = [entry.values[0] for entry in entries]
        scale = Scale.of(values, zoom, self.options.text("encoding") == "utf8")
        if zoom:
            scale = Scale(int(scale.total), scale.positive, scale.negative, scale.utf8)
        widths = self._widths(entries[0])
        wide, head = (sum(w + 1 for w in widths), "key") if widths else (16, "value")
        self.write(f"\n{head:>{wide}} {'------------- Distribution -------------':>41} "
                   f"{'count':<9}\n")
        for entry in entries:
            value = scalar(entry)
            self.write(f"{self._heads(entry)} {scale.bar(entry.values[0])} {value:<9}\n")

    def _ascii(self) -> bool:
        encoding = self.options.text("encoding")
        if encoding:
            return encoding == "ascii"
        return os.environ.get("TERM", "") in ("sun", "sun-color", "dumb")

    def _packs(self, entries: list[Entry]) -> None:
        first = entries[0]
        if first.kind is Aggregate.QUANTIZE:
            used = [n for entry in entries for n, v in enumerate(entry.values) if v]
            low, high = (min(used), max(used)) if used else (62, 64)
            if low not in (0, 63):
                low -= 1
            high = min(high + 1, len(first.values) - 1)
            ends = bounds(first)
            least, most = str(ends[low]), str(ends[high])
            small, large = _digits(ends[low]), _digits(ends[high])
        else:
            base, step, levels = first.info.parameters
            low, high = 0, levels + 1
            least, most = f"< {base}", f">= {base + levels * step}"
            small, large = 7, 8
        zoom, ascii_only = self.options.given("aggzoom"), self._ascii()
        wide = sum(w + 1 for w in self._widths(first))
        head = "key" if first.key else ""
        self.write(f"\n{head:>{wide}} {'min':>{small}} .{'-' * (high - low + 1)}. "
                   f"{'max':<{large}} | count\n")
        for entry in entries:
            values = entry.values[low : high + 1]
            total = Scale.of(values, zoom).total
            line = "".join(symbol(value, total, ascii_only) for value in values)
            count = sum(values)
            self.write(f"{self._heads(entry)}{least:>{small + 1}} :{line}: {most:<{large}} | "
                       f"{signed(count)}\n")

    # -- messages ----------------------------------------------------------------------------------

    @staticmethod
    def fault(found: Failure) -> str:
        """Return the message for a fault, as dtrace(1) prints it."""
        fault = FAULTS.get(Fault(found.fault) if found.fault in Fault.__members__.values()
                           else Fault.UNKNOWN, "unknown fault")
        return fault + (f" ({found.value:#x})" if found.fault in WITH_VALUE else "")

    def failure(self, found: Failure) -> None:
        """Report a fault in a clause on standard error."""
        e = found.enabled
        probe = f"ID {e.probe.id}: {e.probe.text}" if e is not None else "ID 0: "
        where = f"action #{found.action}" if found.action else "predicate"
        if found.at is not None:
            where += f" at BPF offset {found.at}"
        self.say(f"error on enabled probe ID {found.number} ({probe}): "
                 f"{self.fault(found)} in {where}")


def _digits(value: int) -> int:
    """Return the width of the column for a bucket bound in the output of ``aggpack``."""
    wide = 1 + (value < 0)
    power = 10
    while power < abs(value):
        wide += 1
        power *= 10
    # dtrace(1) counts one more digit: its power of ten overflows.
    return max(wide + (power > MOST_POWER), 4)

