"""Linked D programs: an executor with the programs' code, and host functions for this code."""

import bisect
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from dtrace.bpf._runtime import NATIVE, Runtime, RuntimeFault
from dtrace.bpf.assembler import ProgramTooLarge
from dtrace.bpf.layout import ARGUMENTS, ContextOffset, Fault, Policy, Region
from dtrace.bpf.linker import Linker
from dtrace.bpf.verifier import verify
from dtrace.d.compile.aggregations import value_count
from dtrace.d.compile.program import Compiled, Compiler, ListedProbe, ManyProbes, singly
from dtrace.d.language.identifiers import KINDS, SUBROUTINES
from dtrace.d.language.options import Options
from dtrace.run.consumer import Enabled, Failure
from dtrace.run.enabled_probes import EnabledClauses, FiredProbe, FiredProbes, Many
from dtrace.run.guest_state import GuestState
from dtrace.run.hosted import Hosted, Values
from dtrace.run.render import Symbols
from dtrace.run.structured import Row
from emu.host.errors import KinstError
from emu.host.system import parent_of

RECORD_SIZE = 1 << 20
SCRATCH = 1 << 20
AGGREGATION_HEAD = 8  # number of bytes that DTrace counts for the ID of an aggregation
MANY = 1000  # number of probes from which they are linked together, not one by one
MAX_FAILURES = 10_000  # maximum number of faults to keep for output that is printed at the end
# In each interval of CHILLED_PER ns, chill() may take MOST_CHILLED ns.
CHILLED_PER, MOST_CHILLED = 10**9, 500 * 10**6
MAX_VARIABLE = 16 << 10
MAX_SIZE = 256 << 20
RANGES = {"strsize": (2, 1 << 16), "nspec": (0, 4096), "stackindent": (0, 1024)}
SIZES = {"bufsize": "buffer size", "aggsize": "aggregation size", "specsize": "speculation size",
         "dynvarsize": "dynamic variable size"}
POLICIES = {"switch": Policy.SWITCH, "fill": Policy.FILL, "ring": Policy.RING}
NAMES = (ContextOffset.PROVIDER, ContextOffset.MODULE, ContextOffset.FUNCTION, ContextOffset.NAME,
         ContextOffset.ID)


@dataclass
class LinkedPrograms:
    """Compiled D programs, linked and ready to be enabled on a machine.

    :param compiler: the compiler of the programs.
    :param say: prints a message on standard error.
    :param guest: the guest to trace; None without a kernel.
    :param sink: callback that receives the output as objects, instead of text on ``out``.
    """

    compiler: Compiler
    options: Options
    symbols: Symbols
    out: IO[str]
    say: Callable[[str], None]
    guest: GuestState | None = None
    sink: Callable[[Row], None] | None = None
    now: int = 0
    enabled: EnabledClauses = field(default_factory=EnabledClauses)

    def __post_init__(self) -> None:
        self._fired = FiredProbes()
        # Provider, module, function or name of a probe -> the string's address
        self._names: dict[str, int] = {}
        self._records: list[tuple[Enabled, int, bytes, int] | Failure] = []
        self._started = time.time_ns() if self.guest is None else self.guest.started

    def link(self, compiled: Sequence[Compiled]) -> None:
        """Link the programs and load them into a new executor.

        :raises KinstError: if the programs are not permitted to run.
        """
        options, storage = self.options, self.compiler.storage
        if any(c.function.destructive for c in compiled) and not options.given("destructive"):
            raise KinstError("could not enable tracing: Destructive actions not allowed")
        if not options.allowed_outside:
            self._only_the_guest(compiled)
        self._limits(compiled)
        together = apart(compiled)
        by_probe: dict[int, list[Compiled]] = {}
        probes: dict[int, ListedProbe] = {}
        for clause in compiled:
            for probe in () if id(clause.probes) in together else clause.probes:
                by_probe.setdefault(probe.number, []).append(clause)
                probes[probe.number] = probe
        linker = Linker()
        for clause in compiled:
            linker.add(clause.function.name, clause.function.code)
        first: dict[int, int] = {}
        numbers: dict[tuple[int, tuple[str, ...]], int] = {}
        # Probes with the same clauses share a program.
        programs: dict[tuple[tuple[str, ...], bool], str] = {}
        program_names: dict[int, str] = {}
        many: list[tuple[Many, str]] = []

        def program(clauses: Sequence[Compiled], always: bool = False) -> str:
            key = tuple([c.function.name for c in clauses]), always
            if key not in programs:
                programs[key] = f"probe_{len(programs)}"
                linker.add_probe(programs[key], *key)
            return programs[key]

        grouped = set(together)
        for clause in compiled:
            if id(clause.probes) in together:
                clauses = together.pop(id(clause.probes))
                assert isinstance(clause.probes, ManyProbes)
                many.append((self.enabled.add_many(
                    clause.probes, [c.function for c in clauses]), program(clauses)))
                self._place_many(clause.probes)
                continue
            for probe in () if id(clause.probes) in grouped else clause.probes:
                number = probe.number
                if number in first:
                    continue
                clauses = by_probe[number]
                self._place_names(probe)
                # All places of a probe share the numbers of its clauses.
                first[number] = numbers.setdefault(
                    (probe.id, tuple([c.function.name for c in clauses])), len(self.enabled) + 1)
                if first[number] > len(self.enabled):
                    for one in clauses:
                        self.enabled.add(one.function, probe)
                program_names[number] = program(
                    clauses, probe.provider == "dtrace" and probe.name in ("END", "ERROR"))
        try:
            linked = linker.link()
        except ProgramTooLarge:
            raise KinstError("failed to enable program: DIF program exceeds maximum program size "
                             "(a jump is out of range)") from None
        values: Values = {
            "pid": os.getpid, "ppid": os.getppid, "uid": os.getuid, "gid": os.getgid,
            "execname": lambda: b"dtrace", "tid": os.getpid, "cpu": lambda: 0, "errno": lambda: 0,
            "vtimestamp": self._time, "walltimestamp": self._wall, "jid": lambda: 0,
            "jailname": lambda: b"0", "zonename": lambda: b"0", "execargs": lambda: b"dtrace",
            "stackdepth": lambda: 0, "ustackdepth": lambda: 0, "caller": lambda: 0,
            "ucaller": lambda: 0, "ipl": lambda: 0, "curthread": lambda: 0}
        if self.guest is not None:
            values |= self.guest.values()
        self.hosted = Hosted(values)
        self.unknown = {} if self.guest is None else self.guest.unknown(storage.hosted)
        self.hosted.destructive = self._destructive
        # (start of the current interval, time in ns spent in chill() since then)
        self._chilled = 0, 0
        if self.guest is None:
            self.hosted.parent = parent_of
        else:
            self.guest.by_line = options.given("stackline")
            self.hosted.stack = partial(
                self.guest.stack, marked=self.guest.by_line or options.given("stackinline"))
            self.hosted.registers = self.guest.register
            self.hosted.entered = self.guest.entered
            self.hosted.in_program = self.guest.in_program
            self.hosted.lock = self.guest.lock
            self.hosted.user_end = self.guest.user_end
            self.hosted.copies_at_once = self.guest.copies_at_once
            self.hosted.copy_out = self.guest.destructive.copy_out
        bufsize = options.number("bufsize")
        sizes: dict[int, int] = {
                 Region.GLOBALS: storage.globals_size, Region.LOCALS: storage.locals_size,
                 Region.WORK: storage.work_size + storage.string_size + 64,
                 Region.RECORD: RECORD_SIZE + 64, Region.SCRATCH: SCRATCH}
        self.runtime = Runtime(
            sizes, bytes(storage.strings), storage.keyed, options.number("dynvarsize"),
            [(KINDS[shape.info.function.name], value_count(shape.info), shape.info.parameters,
              AGGREGATION_HEAD + 8 * value_count(shape.info)
              + sum(size for _kind, _how, size in shape.parts))
             for shape in self.compiler.aggregations if shape.info.function is not None],
            options.number("aggsize"), bufsize, POLICIES[options.text("bufpolicy")],
            (options.number("nspec"), options.number("specsize")), storage.string_size,
            self.hosted.helpers())
        self.runtime.divide(Region.GLOBALS, storage.globals)
        self.runtime.divide(Region.LOCALS, storage.locals)
        self.hosted.runtime = self.runtime
        self.runtime.faults, self.runtime.actions = self._fault, self._action
        if self.guest is not None:
            self.guest.attach(self.runtime)
            if not self.guest.by_line:
                self.guest.walk_natively(options.given("stackinline"))
            self.now = self.guest.now
        self.runtime.thread = 1
        self.linked = linked
        helpers = {*NATIVE, *self.hosted.helpers()}
        for name, function in SUBROUTINES.items():
            if function.number not in helpers and function.number in linked.helpers:
                raise KinstError(f"failed to enable program: {name}() is not supported "
                                 "(see docs/d.md)")
        verify(linked.code, linked.offsets.values(), helpers)
        base = self._base = self.runtime.load(linked.code)
        for number, probe in probes.items():
            self._fired.add(number, FiredProbe(
                probe, base + linked.offsets[program_names[number]], first[number]))
        for group, name in many:
            self._fired.add_many(group, base + linked.offsets[name])
            if self.guest is not None:
                self.guest.add_many(group, base + linked.offsets[name], self._names,
                                    linked.arguments[name])
        if self.guest is not None:
            for number, fired in self._fired.single.items():
                self.guest.add(fired.probe, fired.entry, fired.first, self._texts(fired.probe),
                               linked.arguments[program_names[number]])
        error = next((p for p in probes.values() if p.text == "dtrace:::ERROR"), None)
        if error is not None:
            fired = self._fired.numbered(error.number)
            self._context(fired, ())
            self.runtime.set_error(fired.entry)

    def _only_the_guest(self, compiled: Sequence[Compiled]) -> None:
        """Check that no action runs a command or writes a file on the host.

        :raises KinstError: if an action does.
        """
        reaching = {"freopen", "system"} if self.guest is None else {"freopen"}
        for action in (action for one in compiled for action in one.function.actions):
            if action.name in reaching:
                what = "runs a command" if action.name == "system" else "writes to a file"
                raise KinstError(f"could not enable tracing: {action.name}() {what} on the "
                                 "host; allow it with -w ('#pragma D option destructive' allows "
                                 "only actions on the kernel)")

    def _destructive(self, name: str, value: int) -> None:
        """Perform a destructive action, such as chill().

        chill() takes none of the kernel's time, as no firing does; without a kernel, it advances
        the clock.  The guest performs all other actions.

        :raises RuntimeFault: if chill() exceeds its limit, or for another action without a kernel.
        """
        if name != "chill" and self.guest is not None:
            self.guest.destructive.carry_out(name, value)
            return
        since, chilled = self._chilled
        now = self._time()
        if now - since > CHILLED_PER:
            since, chilled = now, 0
        if name != "chill" or chilled + value > MOST_CHILLED:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        self._chilled = since, chilled + value
        if self.guest is None:
            self.now += value
            self.runtime.set_context(ContextOffset.TIMESTAMP, self.now)

    def _place(self, name: str) -> None:
        """Store a name among the constants."""
        if name not in self._names:
            self._names[name] = Region.STRINGS.address + self.compiler.storage.text(name.encode())

    def _place_names(self, probe: ListedProbe) -> None:
        for name in (probe.provider, probe.module, probe.function, probe.name):
            self._place(name)

    def _place_many(self, probes: ManyProbes) -> None:
        if not probes:
            return
        self._place_names(probes[0])
        distinct = set[int]()
        for function, _first, offsets in probes.runs():
            self._place(function.module_name)
            self._place(function.name)
            distinct.update(offsets)
        for offset in sorted(distinct):
            self._place(str(offset))

    def _texts(self, probe: ListedProbe) -> list[int]:
        """Return the addresses of a probe's provider, module, function and name, and its ID."""
        names = self._names
        return [names[probe.provider], names[probe.module], names[probe.function],
                names[probe.name], probe.id]

    def _limits(self, compiled: Sequence[Compiled]) -> None:
        """Check sizes against their limits, and lower buffer sizes that are too large.

        :raises KinstError: if a size is out of range.
        """
        for variable in self.compiler.checker.variables.values():
            if variable.offset >= 0 and self.compiler.storage.size(variable.type) > MAX_VARIABLE:
                raise KinstError("failed to enable program: DIF program content is invalid "
                                 f"({variable.name} is larger than {MAX_VARIABLE} bytes)")
        options = self.options
        for name, (least, most) in RANGES.items():
            if not least <= options.number(name) <= most:
                raise KinstError(f"could not enable tracing: {name} must be from {least} to {most}")
        for size, _what, _thread, key in self.compiler.storage.keyed:
            if size + key > MAX_VARIABLE:
                raise KinstError("failed to enable program: DIF program content is invalid (an "
                                 f"array element is larger than {MAX_VARIABLE} bytes)")
        for name, what in SIZES.items():
            size = wanted = options.number(name)
            while size > MAX_SIZE:
                size //= 2
            if size == wanted:
                continue
            if options.text("bufresize") == "manual" and name != "dynvarsize":
                raise KinstError("could not enable tracing: Memory allocation failure")
            options.values[name] = size
            if not options.given("quiet"):
                self.say(f"{what} lowered to {_in_units(size)}")
        if not options.number("bufsize"):
            raise KinstError("could not enable tracing: Enabling exceeds size of buffer")
        if options.text("bufpolicy") == "fill":
            needed = sum(one.function.counted for one in compiled
                         for probe in singly(one.probes) if probe.text == "dtrace:::END"
                         if one.function.size is not None)
            if needed > options.number("bufsize"):
                raise KinstError("could not enable tracing: END enablings exceed size of principal "
                                 "buffer")

    def _time(self) -> int:
        """Return the current time in nanoseconds; this also works during a firing."""
        return self.now if self.guest is None else self.guest.now

    def _wall(self) -> int:
        return self._started + self._time()

    def _fault(self, number: int, fault: int, value: int, at: int) -> None:
        if self.options.text("bufpolicy") == "switch":
            self._take()
        elif len(self._records) >= MAX_FAILURES:
            return
        e = self.enabled.numbered(number) if 0 < number <= len(self.enabled) else None
        action, storing = self._action(at)
        self._records.append(Failure(e, number, fault, value, action, None if storing else at))

    def _action(self, at: int) -> tuple[int, bool]:
        """Return an instruction's action number, and whether the instruction fills the record.

        Actions are numbered from 1; 0 is the predicate.
        """
        at -= self._base
        return self.linked.actions[at] if 0 <= at < len(self.linked.actions) else (0, False)

    def _take(self) -> None:
        self._records += [(self.enabled.numbered(number), cpu, content, time)
                          for number, cpu, content, time in self.runtime.records()
                          if 0 < number <= len(self.enabled)]

    def _context(self, fired: FiredProbe, arguments: Sequence[int]) -> None:
        """Fill in the context of a firing, which the probe's program reads."""
        rt = self.runtime
        rt.set_context(ContextOffset.PROBE, fired.probe.number)
        rt.set_context(ContextOffset.FIRST, fired.first)
        rt.set_context(ContextOffset.CLAUSE, fired.first)
        rt.set_context(ContextOffset.TIMESTAMP, self.now)
        for offset, address in zip(NAMES, self._texts(fired.probe), strict=True):
            rt.set_context(offset, address)
        for n in range(ARGUMENTS):
            rt.set_context(ContextOffset.ARGUMENTS + 8 * n,
                           arguments[n] if n < len(arguments) else 0)


def apart(compiled: Sequence[Compiled]) -> dict[int, list[Compiled]]:
    """Return the sequences of many probes that share no probe with any other sequence.

    :return: ``id()`` of the sequence -> its clauses.
    """
    found: dict[int, list[Compiled]] = {}
    others: dict[int, Sequence[ListedProbe]] = {}
    for clause in compiled:
        others[id(clause.probes)] = clause.probes
        if isinstance(clause.probes, ManyProbes) and len(clause.probes) >= MANY:
            found.setdefault(id(clause.probes), []).append(clause)
    for key in list(found):
        probes = others[key]
        assert isinstance(probes, ManyProbes)
        if any(shares(probes, other) for number, other in others.items() if number != key):
            del found[key]
    return found


def shares(probes: ManyProbes, others: Sequence[ListedProbe]) -> bool:
    """Return whether one of many probes is among others."""
    numbers = probes.numbers
    more: Iterable[int] = (others.numbers if isinstance(others, ManyProbes)
                           else [probe.number for probe in others])
    if isinstance(others, ManyProbes) and len(others) > len(numbers):
        return shares(others, probes)
    for number in more:
        at = bisect.bisect_left(numbers, number)
        if at < len(numbers) and numbers[at] == number:
            return True
    return False


def _in_units(size: int) -> str:
    """Format a size in the largest unit that fits, or in bytes if that leaves a remainder."""
    unit = 0
    while size >> 10 * (unit + 1):
        unit += 1
    if unit and size % (1 << 10 * unit) == 0:
        return f"{size >> 10 * unit}{' kmgtpe'[unit]}"
    return f"{size} bytes"
