"""A trace from its programs to its end: linked, run, consumed.

Without a kernel there are only DTrace's own probes; time is virtual and jumps from one firing to
the next, or is the host's (``-x host-time``).
"""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dtrace.bpf.interpreter import Interpreter, Narrate
from dtrace.bpf.layout import ContextOffset, Region
from dtrace.d.compile.program import Compiled
from dtrace.d.language.options import MAX_TIME
from dtrace.run.consumer import Consumer, Enabled, Failure
from dtrace.run.guest_state import TracingEnded
from dtrace.run.linked_programs import FiredProbe, LinkedPrograms
from dtrace.run.structured import Row, Structured, aggregations, shown_name
from dtrace.run.timers import interval
from emu.host.errors import KinstError
from kinst.probes.breakpoints import NativeState
from kinst.relocation.trap import CpuState

STATE_ADDRESS = 0x0D7A_FFFF_0000_0000  # what BEGIN and END see as arg0
MAX_FIRINGS = 10_000_000


class Timers:
    """The probes that fire by the clock.

    :param now: the time at which they are enabled.
    """

    def __init__(self, probes: Iterable[FiredProbe], now: int) -> None:
        self._waiting: list[tuple[int, int, int, FiredProbe]] = []
        for fired in probes:
            every = interval(fired.probe.name) if fired.probe.provider == "profile" else None
            if every is not None:
                heapq.heappush(self._waiting, (now + every, fired.probe.number, every, fired))

    @property
    def due(self) -> int | None:
        """When the next one fires; None: there is none."""
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> FiredProbe:
        """The next one; it will fire again."""
        due, number, every, fired = self._waiting[0]
        heapq.heapreplace(self._waiting, (due + every, number, every, fired))
        return fired


@dataclass
class Session(LinkedPrograms):
    """Programs that are run and consumed; see ``LinkedPrograms``.

    :ivar seen: is given each record, too.
    """

    firings: int = 0
    seen: Callable[[Enabled, int, bytes], None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.consumer = Consumer(self.options, self.symbols, self.out, self.say)
        if self.sink is not None:
            self.consumer = Structured(
                self.options, self.symbols, self.out, self.say, sink=self.sink)
        self.interrupted = False
        self._busy = False  # it prints, or lets one of DTrace's own probes fire
        self._interpreter: Interpreter | None = None

    def link(self, compiled: Sequence[Compiled]) -> None:
        """Make the executor and give it the programs.

        :raises KinstError: when they may not run.
        """
        super().link(compiled)
        if self.guest is not None:
            self.runtime.look = self._looked

    @property
    def stopped(self) -> bool:
        """By Ctrl-C, by a buffer that is full, by exit()."""
        return self.interrupted or self.runtime.stopped or self.runtime.read(
            Region.STATE.address, 8) != bytes(8)

    # -- running -----------------------------------------------------------------------------------

    def fire(self, fired: FiredProbe, arguments: Sequence[int] = ()) -> None:
        """Let a probe fire."""
        self._context(fired, arguments)
        self.firings += 1
        self._busy = True
        try:
            self.runtime.fire(fired.entry)
        finally:
            self._busy = False

    def narrated(self, probe: int, state: CpuState | NativeState, narrate: Narrate) -> None:
        """Let a kernel's probe fire, in Python.

        :param probe: its ID.
        :param state: the interrupted registers.
        :param narrate: is told of each instruction before it is executed.
        """
        assert self.guest is not None
        fired, kept, faults = self._by_probe[probe], self.guest.state, self.runtime.faults
        self.guest.state, self.now = state, self.guest.now
        self._context(fired, ())
        self.runtime.thread = self.guest.thread
        self.runtime.faults = self._told
        self.firings += 1
        try:
            if self._interpreter is None:
                self._interpreter = Interpreter(self.runtime, self.linked.code)
            self._interpreter.narrate = narrate
            self._interpreter.run(fired.entry - self._base, Region.CONTEXT.address)
        finally:
            self.guest.state, self.runtime.faults = kept, faults

    def _told(self, _number: int, fault: int, value: int, at: int) -> None:
        """Of a fault by the executor in Python, which knows no clauses."""
        clause = self.runtime.read(Region.CONTEXT.address + ContextOffset.CLAUSE, 8)
        self._fault(int.from_bytes(clause, "little"), fault, value, at + self._base)

    def _named(self, name: str) -> FiredProbe | None:
        return next((f for f in self._by_probe.values()
                     if f.probe.provider == "dtrace" and f.probe.name == name), None)

    def _looked(self, now: int) -> None:
        """It is time to look at what there is, between two firings."""
        self.now = now
        self._consume()
        self.runtime.look_at(now + self._period)
        self._end_workload()

    def _end_workload(self) -> None:
        """When tracing has ended, so has what it was for."""
        if self.stopped and self.guest is not None:
            self.guest.stop()

    def run(self, workload: Callable[[], None] | None = None) -> int:
        """Trace; the exit status.

        :param workload: what the kernel is to do; without a kernel, None.
        :raises KinstError: what the workload raised, when all that was traced has been shown.
        """
        failure: KinstError | None = None
        try:
            self._begin()
        except KinstError as error:
            failure = error
        if failure is not None:
            pass
        elif workload is None or self.guest is None:
            self._timers()
        elif not self.stopped:
            self.runtime.look_at(self.now + self._period)
            try:
                timers = Timers(self._by_probe.values(), self.guest.time)
                self.guest.run(workload, timers.due, lambda: self._rung(timers))
            except KeyboardInterrupt:
                self.interrupted = True
            except TracingEnded:
                pass
            except KinstError as error:  # what was traced before it is shown first
                failure = error
            self.now = self.guest.now
        self._end()
        if failure is not None:
            raise failure
        return self.consumer.status

    def begin(self) -> None:
        """Begin to trace what somebody else will run on the kernel, up to ``end``."""
        assert self.guest is not None
        self._begin()
        self.guest.begin()
        self.moved()

    def moved(self) -> None:
        """The guest's time is another: count from there."""
        assert self.guest is not None
        self.now = self.guest.now
        self.runtime.look_at(self.now + self._period)
        timers = Timers(self._by_probe.values(), self.guest.time)
        self.guest.arm(timers.due, lambda: self._rung(timers))

    def end(self) -> None:
        """:raises KinstError: when the probes cannot be disabled."""
        assert self.guest is not None
        self.guest.end()
        self.now = self.guest.now
        self._end()

    def look(self) -> None:
        """Take what there is, while nothing runs."""
        assert self.guest is not None
        self.now = self.guest.now
        self._consume()

    def hurry(self) -> None:
        """Look soon, whatever the options say; at any time, also from a signal's handler."""
        if self.guest is None or self.stopped:
            return
        if self._busy or self.runtime.firing or self.guest.frozen:
            self.runtime.look_at(0)
        else:
            self.look()

    def aggregated(self, empty: bool = False) -> list[Row]:
        """All aggregations as they are.

        :param empty: distributions also have their empty buckets, as ``values.buckets`` says.
        """
        return aggregations(self.consumer, empty=empty)

    def timed(self) -> dict[str, int]:
        """The aggregations whose key is a time: nanoseconds of one of it, 0 where that is not
        plain."""
        return {shown_name(shape.info.name): shape.info.unit for shape in self.compiler.aggregations
                if shape.info.unit is not None}

    def _begin(self) -> None:
        self.options.active = True
        begin = self._named("BEGIN")
        if begin is not None:
            self.fire(begin, [STATE_ADDRESS])
        self._consume()

    def _end(self) -> None:
        self._wait_for_status()
        end = self._named("END")
        try:
            if end is not None:
                self.fire(end, [STATE_ADDRESS])
        finally:
            self._consume(last=True)
            self.consumer.rest()
            self.out.flush()
            self.consumer.close_other()

    def _wait_for_status(self) -> None:
        """The end is noticed when the status is looked at, once in a while."""
        rate = self.options.number("statusrate")
        if self.guest is None and rate and self.now % rate:
            self._wait(self.now + rate - self.now % rate, False)

    def _timers(self) -> None:
        """The probes that fire by the clock, until tracing ends."""
        timers = Timers(self._by_probe.values(), self.now)
        look = self.now + self._period
        host = self.options.given("host-time")
        if timers.due is None and not self.stopped:
            self.say("nothing is left that could fire: the trace ends")
            return
        while timers.due is not None and not self.stopped:
            due = timers.due
            if due > MAX_TIME:
                self.say("given up after 146 years")
                return
            if look <= due:
                period = self._period
                self._wait(due - (due - look) % period if not host else look, host)
                self._consume()
                look = self.now + self._period
                if host and look <= due:  # in the host's time, look again and again
                    continue
            self._wait(due, host)
            if self.firings >= MAX_FIRINGS:
                self.say(f"given up after {MAX_FIRINGS} firings")
                return
            self.fire(timers.take(), [0])

    def _rung(self, timers: Timers) -> int | None:
        """A kernel's time has come to a timer; when to come again."""
        assert self.guest is not None
        while timers.due is not None and timers.due <= self.guest.time and not self.stopped:
            self.now = max(self.now, timers.due)
            pc = self.guest.pc  # the kernel's, or the program's behind it
            self.fire(timers.take(), [0, pc] if self.guest.outside else [pc])
        self._end_workload()
        return None if self.stopped else timers.due

    @property
    def _period(self) -> int:
        """Between two looks at what there is."""
        number = self.options.number
        return max(min(number("switchrate"), number("aggrate")), 10**6)

    def _wait(self, until: int, host: bool) -> None:
        if host and until > self.now:
            time.sleep((until - self.now) / 1e9)
        self.now = max(self.now, until)

    # -- consuming ---------------------------------------------------------------------------------

    def _consume(self, last: bool = False) -> None:
        """Print what there is; with a buffer that is kept, only at the end."""
        if self.options.text("bufpolicy") != "switch" and not last:
            return
        self._busy = True
        try:
            self._print()
        finally:
            self._busy = False

    def _print(self) -> None:
        self._drops(self.consumer.table.merge(
            self.compiler.aggregations, self.runtime.aggregated(), self.symbols.start))
        self._take()
        records, done = self._records, 0
        try:
            for done, record in enumerate(records, 1):
                if isinstance(record, Failure):
                    self.out.flush()
                    self.consumer.failure(record)
                    continue
                following = records[done] if done < len(records) else None
                after = following[0] if isinstance(following, tuple) else None
                if self.seen is not None:
                    self.seen(*record)
                self.consumer.record(*record, after)
        finally:
            del records[:done]  # the others are printed by who comes next
        self.out.flush()

    def _drops(self, keys: int) -> None:
        """Say what was dropped since the last time.

        :param keys: of aggregations, for which the consumer had no room.
        """
        drops = self.runtime.take_drops()
        records, dynamic, aggregation, speculative, unavailable, errors = drops
        tags = self.options.given("droptags")
        on = f"on CPU {self.runtime.cpu}"
        for count, tag, text in (
            (records, "PRINCIPAL", f"drop{{s}} {on}"),
            (aggregation, "AGGREGATION", f"aggregation drop{{s}} {on}"),
            (keys, "AGGREGATION", "key{s} of aggregations found no room"),
            (dynamic, "DYNAMIC", "dynamic variable drop{s}"),
            (speculative, "SPEC", "speculative drop{s}"),
            (unavailable, "SPECUNAVAIL",
             "failed speculation{s} (no speculative buffer available)"),
            (errors, "DBLERROR", "error{s} in ERROR probe enabling"),
        ):
            if count:
                self.say(f"[DTRACEDROP_{tag}] " * tags
                         + f"{count} {text.format(s='s' * (count > 1))}")


