"""Trace session: runs linked programs and consumes their output until tracing ends.

Without a kernel, there are only DTrace's own probes. Time is then virtual and jumps from one firing
to the next, or is the host's (``-x host-time``).
"""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dtrace.bpf.interpreter import Interpreter, Narrate
from dtrace.bpf.layout import ContextOffset, Region
from dtrace.d.compile.program import Compiled
from dtrace.d.language.options import DEFAULTS, MAX_TIME
from dtrace.run.consumer import Consumer, Enabled, Failure
from dtrace.run.enabled_probes import FiredProbe
from dtrace.run.guest_state import TracingEnded
from dtrace.run.libxo_output import LibxoOutput
from dtrace.run.linked_programs import LinkedPrograms
from dtrace.run.structured import Row, Structured, aggregations, shown_name
from dtrace.run.timers import interval
from emu.host.errors import KinstError
from kinst.probes.breakpoints import NativeState
from kinst.relocation.trap import CpuState

STATE_ADDRESS = 0x0D7A_FFFF_0000_0000  # value of arg0 of BEGIN and END
MAX_FIRINGS = 10_000_000
# Options with the intervals at which aggregations are read and buffers are printed
RATES = ("aggrate", "switchrate")
WAKES = 1  # ns after a timer at which dtrace(1), which waits as long, continues


class Timers:
    """Queue of the probes that fire at regular intervals.

    :param now: time in nanoseconds at which the probes are enabled.
    """

    def __init__(self, probes: Iterable[FiredProbe], now: int) -> None:
        self._waiting: list[tuple[int, int, int, FiredProbe]] = []
        for fired in probes:
            every = interval(fired.probe.name) if fired.probe.provider == "profile" else None
            if every is not None:
                heapq.heappush(self._waiting, (now + every, fired.probe.number, every, fired))

    @property
    def due(self) -> int | None:
        """Time of the next firing in nanoseconds, or None if no probe fires at intervals."""
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> FiredProbe:
        """Return the probe that fires next, and schedule the probe's following firing."""
        due, number, every, fired = self._waiting[0]
        heapq.heapreplace(self._waiting, (due + every, number, every, fired))
        return fired


@dataclass
class Session(LinkedPrograms):
    """Linked programs, with methods to run them and to consume their output.

    :ivar seen: callback that receives each record before it is printed.
    :ivar held: returns whether the workload must continue although tracing has ended.
    """

    firings: int = 0
    seen: Callable[[Enabled, int, bytes], None] | None = None
    held: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = LibxoOutput if self.options.text("oformat") else Consumer
        self.consumer = kind(self.options, self.symbols, self.out, self.say)
        if self.sink is not None:
            self.consumer = Structured(
                self.options, self.symbols, self.out, self.say, sink=self.sink)
        self.interrupted = False
        self._only_begin = False  # whether BEGIN has ended the trace
        self._hurried = False  # whether the buffers are consumed before the regular time
        self._since: dict[str, int] = {}  # option with a rate -> time of the last action
        self._busy = False  # whether output or a firing of DTrace's own probes is in progress
        self._interpreter: Interpreter | None = None

    def link(self, compiled: Sequence[Compiled]) -> None:
        """Link the programs and load them into a new executor.

        :raises KinstError: if the programs are not permitted to run.
        """
        super().link(compiled)
        if self.guest is not None:
            self.runtime.look = self._looked

    @property
    def stopped(self) -> bool:
        """Whether tracing has ended, by Ctrl-C, a full buffer or exit()."""
        return self.interrupted or self.ended_itself

    @property
    def ended_itself(self) -> bool:
        """Whether a full buffer or exit() has ended tracing."""
        return self.runtime.stopped or self.runtime.read(Region.STATE.address, 8) != bytes(8)

    # -- running -----------------------------------------------------------------------------------

    def fire(self, fired: FiredProbe, arguments: Sequence[int] = ()) -> None:
        """Fire a probe with the given arguments."""
        self._context(fired, arguments)
        self.firings += 1
        self._busy = True
        try:
            self.runtime.fire(fired.entry)
        finally:
            self._busy = False

    def narrated(self, probe: int, state: CpuState | NativeState, narrate: Narrate) -> None:
        """Fire a kernel probe, and run its BPF program in the Python interpreter.

        :param probe: ID of the probe.
        :param state: the interrupted registers.
        :param narrate: callback before each BPF instruction.
        """
        assert self.guest is not None
        fired, kept, faults = self._fired.numbered(probe), self.guest.state, self.runtime.faults
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
        """Record a fault from the Python interpreter; the context holds the clause's number."""
        clause = self.runtime.read(Region.CONTEXT.address + ContextOffset.CLAUSE, 8)
        self._fault(int.from_bytes(clause, "little"), fault, value, at + self._base)

    def _named(self, name: str) -> FiredProbe | None:
        return next((f for f in self._fired.single.values()
                     if f.probe.provider == "dtrace" and f.probe.name == name), None)

    def _looked(self, now: int) -> None:
        """Consume the buffers; the runtime calls this method regularly, between two firings."""
        self.now = now
        self._consume(force=self._hurried)
        self._hurried = False
        self.runtime.look_at(now + self.period)
        self._end_workload()

    def _end_workload(self) -> None:
        """Stop the workload if tracing has ended."""
        if self.stopped and self.guest is not None and not (self.held is not None and self.held()):
            self.guest.stop()

    def run(self, workload: Callable[[], None] | None = None) -> int:
        """Trace until tracing ends, and return the exit status.

        :param workload: runs the kernel; None without a kernel.
        :raises KinstError: the workload's error, after all output has been printed.
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
            self.runtime.look_at(self.now + self.period + WAKES)
            try:
                timers = Timers(self._fired.single.values(), self.guest.time)
                self.guest.run(workload, timers.due, lambda: self._rung(timers))
            except KeyboardInterrupt:
                self.interrupted = True
            except TracingEnded:
                pass
            except KinstError as error:  # re-raised below, after the output is printed
                failure = error
            self.now = self.guest.now
        self._end()
        if failure is not None:
            raise failure
        return self.consumer.status

    def begin(self) -> None:
        """Begin to trace a workload that the caller runs; ``end()`` ends the trace."""
        assert self.guest is not None
        self._begin()
        self.guest.begin()
        self.moved()

    def moved(self) -> None:
        """Restart the timers after the guest has moved to another time."""
        assert self.guest is not None
        self.now = self.guest.now
        self._since.clear()
        self.runtime.look_at(self.now + self.period + WAKES)
        timers = Timers(self._fired.single.values(), self.guest.time)
        self.guest.arm(timers.due, lambda: self._rung(timers))

    def end(self) -> None:
        """End the trace and print the remaining output.

        :raises KinstError: if the probes cannot be disabled.
        """
        assert self.guest is not None
        self.guest.end()
        self.now = self.guest.now
        self._end()

    def look(self, force: bool = True) -> None:
        """Consume the buffers while no workload is running.

        :param force: whether to do it before ``aggrate`` and ``switchrate`` have passed.
        """
        assert self.guest is not None
        self.now = self.guest.now
        self._consume(force=force)

    def hurry(self) -> None:
        """Consume the buffers as soon as possible, before the next regular time.

        This may be called at any time, also from a signal handler. It does nothing if one of
        ``RATES`` differs from its default.
        """
        if self.guest is None or self.stopped or any(
                self.options.number(name) != DEFAULTS[name] for name in RATES):
            return
        if self._busy or self.runtime.firing or self.guest.frozen:
            self._hurried = True
            self.runtime.look_at(0)
        else:
            self.look()

    def aggregated(self, empty: bool = False) -> list[Row]:
        """Return the current values of all aggregations.

        :param empty: whether to include empty buckets of distributions; see ``values.buckets``.
        """
        return aggregations(self.consumer, empty=empty)

    def timed(self) -> dict[str, int]:
        """Return {name: nanoseconds per key unit} for aggregations whose only key is a time.

        The unit is 0 if it cannot be determined.
        """
        return {shown_name(shape.info.name): shape.info.unit for shape in self.compiler.aggregations
                if shape.info.unit is not None}

    def _begin(self) -> None:
        self.options.active = True
        begin = self._named("BEGIN")
        if begin is not None:
            self._fire_in_tracer(begin)
        # If BEGIN ends the trace, dtrace(1) consumes nothing before END has fired.
        self._only_begin = self.stopped
        if not self._only_begin:
            self._consume()

    def _end(self) -> None:
        self._wait_for_status()
        end = self._named("END")
        try:
            if end is not None:
                self._fire_in_tracer(end)
        finally:
            self._consume(last=True)
            self.consumer.rest()
            self.out.flush()
            self.consumer.close_other()

    def _fire_in_tracer(self, fired: FiredProbe) -> None:
        """Fire BEGIN or END, whose ``self->`` variables are those of dtrace(1)'s own thread.

        Without a guest, all probes fire in the same thread.
        """
        self.runtime.in_tracer = self.guest is not None
        try:
            self.fire(fired, [STATE_ADDRESS])
        finally:
            self.runtime.in_tracer = False

    def _wait_for_status(self) -> None:
        """Advance the time to the next status check, at which dtrace(1) notices the end."""
        rate = self.options.number("statusrate")
        if self.guest is None and rate and self.now % rate:
            self._wait(self.now + rate - self.now % rate, False)

    def _timers(self) -> None:
        """Fire the timer probes until tracing ends."""
        timers = Timers(self._fired.single.values(), self.now)
        look = self.now + self.period
        host = self.options.given("host-time")
        if timers.due is None and not self.stopped:
            self.say("no enabled probe can fire any more: ending the trace")
            return
        while timers.due is not None and not self.stopped:
            due = timers.due
            if due > MAX_TIME:
                self.say("trace ended: limit of 146 years reached")
                return
            if look < due:  # dtrace(1) wakes up after the timers
                period = self.period
                self._wait(due - (due - look) % period if not host else look, host)
                self._consume()
                look = self.now + self.period
                if host and look <= due:  # with the host's clock, consume again before the timer
                    continue
            self._wait(due, host)
            if self.firings >= MAX_FIRINGS:
                self.say(f"trace ended: limit of {MAX_FIRINGS} firings reached")
                return
            self.fire(timers.take(), [0])

    def _rung(self, timers: Timers) -> int | None:
        """Fire the timers that are due, and return the time at which the next one is due."""
        assert self.guest is not None
        while timers.due is not None and timers.due <= self.guest.time and not self.stopped:
            look, period = self.runtime.look_time, self.period
            if look < timers.due:  # dtrace(1) has consumed the buffers in the meantime
                self._looked(timers.due - (timers.due - look) % period)
                continue
            self.now = max(self.now, timers.due)
            pc = self.guest.pc  # passed as arg0 in the kernel, as arg1 in a user program
            self.fire(timers.take(), [0, pc] if self.guest.outside else [pc])
        self._end_workload()
        return None if self.stopped else timers.due

    @property
    def has_timers(self) -> bool:
        """Whether an enabled probe fires at regular intervals."""
        return Timers(self._fired.single.values(), 0).due is not None

    @property
    def period(self) -> int:
        """Interval at which the buffers are consumed, in nanoseconds."""
        return max(min(map(self.options.number, RATES)), 10**6)

    def _wait(self, until: int, host: bool) -> None:
        if host and until > self.now:
            time.sleep((until - self.now) / 1e9)
        self.now = max(self.now, until)

    # -- consuming ---------------------------------------------------------------------------------

    def _due(self, name: str) -> bool:
        """Return whether the interval of one of ``RATES`` has passed, and begin the next one."""
        rate = max(self.options.number(name), 1)
        last = self._since.get(name)
        if last is not None and 0 <= self.now - last < rate:
            return False
        self._since[name] = self.now if last is None or self.now < last else (
            self.now - (self.now - last) % rate)
        return True

    def _consume(self, last: bool = False, force: bool = False) -> None:
        """Print the buffered data; unless ``bufpolicy`` is "switch", print only at the end.

        :param force: whether to do it before ``aggrate`` and ``switchrate`` have passed.
        """
        aggregated, switched = (self._due(name) or last or force for name in RATES)
        if self.options.text("bufpolicy") != "switch" and not last:
            return
        self._busy = True
        try:
            if aggregated:
                self._drops(self.consumer.table.merge(
                    self.compiler.aggregations, self.runtime.aggregated(), self.symbols.start))
            if switched:
                self._print()
        finally:
            self._busy = False

    def _print(self) -> None:
        self._take()
        if self._only_begin and not self.options.given("temporal"):
            self._records.sort(key=lambda record: not _is_of_begin(record))
        records, done = self._records, 0
        try:
            for done, record in enumerate(records, 1):
                if isinstance(record, Failure):
                    self.out.flush()
                    self.consumer.failure(record)
                    continue
                following = records[done] if done < len(records) else None
                after = following[0] if isinstance(following, tuple) else None
                enabled, cpu, content, self.consumer.time = record
                if self.seen is not None:
                    self.seen(enabled, cpu, content)
                self.consumer.record(enabled, cpu, content, after)
        finally:
            del records[:done]  # after an exception, the next call prints the remaining records
        self.out.flush()

    def _drops(self, keys: int) -> None:
        """Report the data dropped since the previous call.

        :param keys: number of aggregation keys for which the consumer had no room.
        """
        drops = self.runtime.take_drops()
        records, dynamic, aggregation, speculative, unavailable, errors = drops
        tags = self.options.given("droptags")
        on = f"on CPU {self.runtime.cpu}"
        for count, tag, text in (
            (records, "PRINCIPAL", f"drop{{s}} {on}"),
            (aggregation, "AGGREGATION", f"aggregation drop{{s}} {on}"),
            (keys, "AGGREGATION", "aggregation key drop{s} (too many keys)"),
            (dynamic, "DYNAMIC", "dynamic variable drop{s}"),
            (speculative, "SPEC", "speculative drop{s}"),
            (unavailable, "SPECUNAVAIL",
             "failed speculation{s} (no speculative buffer available)"),
            (errors, "DBLERROR", "error{s} in ERROR probe enabling"),
        ):
            if count:
                self.say(f"[DTRACEDROP_{tag}] " * tags
                         + f"{count} {text.format(s='s' * (count > 1))}")


def _is_of_begin(record: tuple[Enabled, int, bytes, int] | Failure) -> bool:
    """Return whether BEGIN wrote a record or caused a fault."""
    enabled = record.enabled if isinstance(record, Failure) else record[0]
    return enabled is not None and enabled.probe.name == "BEGIN"
