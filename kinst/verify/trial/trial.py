"""Instructions executed in a booted kernel: in place, and under the module's own probes.

The instructions stand in a function of the kernel that nothing calls meanwhile, each with a
prologue before it, so that the module takes it for a function.  Random registers point into pages
that the guest's own allocator has given; the stack is there, too.  No time passes between the
executions, so that no interrupt comes by itself.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.guests.freebsd.kernel import M_WAITOK_ZERO
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.call import Caller, CallError
from emu.machine.machine import StopReason, Until
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Refuse, Rewrite
from kinst.verify.laboratory.laboratory import SAME, mixed
from kinst.verify.laboratory.outcome import ChangedPages, Outcome
from kinst.verify.trial.architecture import TRIALS
from kinst.verify.trial.provider_module import KinstModule, MadeProbe, ProviderModule

PAGE = 4096
DATA_PAGES, STACK_PAGES = 2, 8
AROUND = 128  # pages of zeros before, between and behind them, for displacements
STACK = DATA_PAGES + AROUND  # the stack's first page, from the data's
ABOVE_STACK = 2 * PAGE + 0x800  # bytes of the stack's pages above the stack pointer
LEAST_STACK = 3 * PAGE  # bytes of stack that the kernel's way through a breakpoint is given
LANDING, CODE_SHARE = 64, 0.4  # bytes at the function's end that are jumped to; share of such words
LONG = 5_000_000  # and of one that is interrupted
LIMIT = 50_000  # instructions of one execution
# States from these numbers on have addresses in the stack alone, of code, of data, of data among
# small numbers; and two have registers of which one half is empty.  The even ones admit interrupts.
CALM, JUMPS, POINTERS, MIXED, HALVES = 1000, 2000, 3000, 4000, 5000
NAME = "trial_of_kinst"  # kinst leaves functions named kinst_... out
PASSES = 64  # times that the end may be passed by before it is reached
LOST = -1  # instead of an error number: the module panics, or does not return
NOWHERE = "it touches memory where nothing is"  # the machine does not tell the kernel of it
REPEATS = "it repeats itself for too long"  # a string instruction with a random count
EXCEPTION = "a fault"
WATCHED, DIVISOR = 64, b"\x40"  # bytes
SMALLEST, APART = 2048, 1 << 20  # bytes of functions that instructions are placed in, and between
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Sample:
    """An instruction at its place in the function."""

    code: bytes
    address: int

    @property
    def after(self) -> int:
        return self.address + len(self.code)


@dataclass(frozen=True)
class PlacedProbe:
    """:param probe: what the module has made for it; None: nothing.
    :param error: the module's error number.
    :param patch: the instruction's bytes when the probe is enabled.
    """

    sample: Sample
    probe: MadeProbe | None
    error: int
    patch: bytes = b""


def _fault(about: int) -> str:
    return f"{EXCEPTION} about {about:#x}"


def _spread(functions: list[Symbol]) -> list[Symbol]:
    """The greatest one, and others far from each other: what is read or written relative to the
    instruction is somewhere else from there."""
    found = list[Symbol]()
    for one in sorted(functions, key=lambda f: -f.size):
        if one.size < SMALLEST and found:
            break
        if all(abs(one.address - other.address) >= APART for other in found):
            found.append(one)
    return found


class _Lost(Exception):
    """The module did not come back from making a probe."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample


class Trial:
    """A machine prepared for executions.

    :param machine: booted, with the module; it is this trial's alone.
    :raises KinstError: when the module cannot be used.
    """

    def __init__(self, machine: UnicornMachine, types: Types, seed: int,
                 module: type[ProviderModule] = KinstModule) -> None:
        self.machine, self.seed = machine, seed
        self.arch, self.trap = TRIALS[machine.arch.name], TRAPS[machine.arch.name]
        self.module = module(machine, types)
        symbols = machine.image.symbols
        self.functions = _spread([f for f in symbols.functions()
                                  if not machine.image.module_at(f.address)])
        self.function = self.functions[0]
        caller = Caller(machine)
        size = (STACK + STACK_PAGES + 2 * AROUND) * PAGE
        self.data = caller.call(machine.symbol("kmem_malloc").address, [size, M_WAITOK_ZERO],
                                "kmem_malloc")
        if not self.data:
            raise KinstError("the guest has no memory for the trial's data")
        self.data += AROUND * PAGE
        self.stack = self.data + STACK * PAGE, self.data + (STACK + STACK_PAGES) * PAGE
        self.sp = self.stack[1] - ABOVE_STACK
        pages = [*range(DATA_PAGES), *range(STACK, STACK + STACK_PAGES)]
        self._pages = [self.data + PAGE * page for page in pages]
        self._views = []
        for address in self._pages:
            physical = machine.translate(address)
            assert physical is not None
            at = physical - machine.board.ram_base
            self._views.append(machine.memory_part.view[at : at + PAGE])
        self._content = [self._random_page(random.Random(seed ^ page)) for page in pages]
        # What returns comes back: the stack is the same in all states.
        page, at = divmod(self.sp - self.stack[0], PAGE)
        top = bytearray(self._content[DATA_PAGES + page])
        top[at : at + 8] = self._landing(random.Random(seed)).to_bytes(8, "little")
        self._content[DATA_PAGES + page] = bytes(top)
        self.faults = {symbol.address: name for name in self.arch.faults
                        if (symbol := symbols.find(name)) is not None}
        general = [name for name in machine.arch.registers
                   if name not in (machine.arch.pc, self.arch.flags)]
        self._set = [name for name in general
                     if name not in self.arch.fixed and name != machine.arch.sp]
        self._compared = general
        self._numbers = machine.cpu.model.registers
        self._states: dict[tuple[int, int], tuple[dict[str, int], list[int]]] = {}
        # Where a sample writes relative to itself, and what is there before.
        self._watched: tuple[Sample | None, dict[int, bytes]] = None, {}
        self._before: dict[int, bytes] = {}  # this state began with
        self._clock = machine.engine.instructions, machine.engine.skew
        self._flags = machine.read_register(self.arch.flags)
        self._fixed = {name: machine.read_register(name) for name in self.arch.fixed}
        self.base = machine.snapshot()
        self._cpu = machine.read_register(machine.guest.threads.per_cpu)
        self._thread = machine.read_u64(self._cpu)
        # FBT has probes on every function from the beginning, also on those that stood here.
        self._old = {p.place for f in self.functions
                     for p in self.module.probes(f.address, f.address + f.size).values()}
        self.fault_at = 0  # where the last fault was, as its trap frame says
        self.unknown = False  # it was one of an instruction that the CPU does not know
        self.made: Snapshot = self.base  # the probes are made, and none is enabled

    # -- states -------------------------------------------------------------------------------

    def _landing(self, generator: random.Random) -> int:
        """An address of code that may be jumped to: at the function's end."""
        return self.function.address + self.function.size - LANDING + 4 * generator.randrange(8)

    def _random_page(self, generator: random.Random) -> bytes:
        """Random words, and addresses of code among them."""
        return b"".join(
            (self._landing(generator) if generator.random() < CODE_SHARE
             else generator.getrandbits(64)).to_bytes(8, "little") for _ in range(PAGE // 8))

    def state(self, number: int, code: bytes = b"") -> tuple[dict[str, int], list[int]]:
        """The random state of that number: general registers and the flags, vector registers; for
        an instruction that adds much to an address, one where that leads to data."""
        far = self.arch.displacement(code) if MIXED <= number < HALVES else 0
        far *= abs(far) > AROUND * PAGE // 2
        if (number, far) not in self._states:
            generator = random.Random(self.seed << 20 ^ number)
            kinds: tuple[Callable[[], int], ...] = (
                lambda: self.data + generator.randrange(0, DATA_PAGES * PAGE - 64, 8),
                lambda: generator.randrange(-8, 300) & MASK,
                lambda: generator.getrandbits(64),
                lambda: self.data + generator.randrange(0, DATA_PAGES * PAGE - 64),
                lambda: -generator.randrange(1, 1 << 31) & MASK,
                lambda: generator.getrandbits(32) << 32,
                lambda: self._landing(generator),
            )
            if number >= HALVES:  # the numbers of a family differ by less than 1000
                values = dict.fromkeys(self._set, SAME[(number - HALVES) // 2])
            elif number >= MIXED:
                values = mixed(
                    (number - MIXED) // 2, self._set,
                    lambda: self.data - far + generator.randrange(0, DATA_PAGES * PAGE - 64, 64),
                    lambda: generator.randrange(0, 256, 16))
            elif number >= JUMPS:
                kind = kinds[-1] if number < POINTERS else kinds[0]
                values = {name: kind() for name in self._set}
            elif number >= CALM:
                values = {name: self.sp + generator.randrange(0, PAGE, 16)
                          for name in self._set}
            else:
                values = {name: generator.choice(kinds)() for name in self._set}
            keep = ~(self.arch.random_flags | self.arch.interrupts) & MASK
            masked = self.arch.interrupts ^ self.arch.interrupts_on
            values[self.arch.flags] = (self._flags & keep
                                       | generator.getrandbits(64) & self.arch.random_flags
                                       | (masked if number % 2 else self.arch.interrupts_on))
            vectors = [generator.getrandbits(bits) for _register, bits in self.arch.vectors]
            self._states[number, far] = values, vectors
        return self._states[number, far]

    # -- a batch ------------------------------------------------------------------------------

    def room(self, where: int = 0) -> int:
        """Bytes of instructions that a batch may have, prologues among them."""
        return self.functions[where].size - 2 * LANDING

    def is_placed(self, code: bytes) -> bool:
        """Whether it depends on an instruction's address what it reads or writes."""
        at = self.function.address
        arch = self.machine.arch
        return arch.placed_operands(code, at) != arch.placed_operands(code, at + PAGE)

    def size_of(self, code: bytes) -> int:
        before, after = self.around(code)
        size, grain = len(before) + len(code) + len(after), len(self.arch.prologue)
        return size + -size % grain

    def around(self, code: bytes) -> tuple[bytes, bytes]:
        """What stands before and behind an instruction."""
        return self.module.around(self.arch.prologue, self.arch.returns, code,
                                  self.trap.is_prologue(code))

    def place(self, codes: Sequence[bytes], where: int = 0) -> list[PlacedProbe]:
        """Put instructions into the function and let the module make and enable their probes.

        :param where: in which of the functions.
        """
        rest, lost = list(codes), list[PlacedProbe]()
        self._watched = None, {}
        while True:
            try:
                return [*self._place(rest, self.functions[where].address), *lost]
            except _Lost as error:
                rest.remove(error.sample.code)
                lost.append(PlacedProbe(error.sample, None, LOST))

    def _place(self, codes: Sequence[bytes], begin: int) -> list[PlacedProbe]:
        """:raises _Lost: for an instruction that the module panics at."""
        machine = self.machine
        machine.restore(self.base)
        at, samples, content = begin, list[Sample](), bytearray()
        for code in codes:
            (before, after), size = self.around(code), self.size_of(code)
            samples.append(Sample(code, at + len(before)))
            content += (before + code + after).ljust(size, self.trap.breakpoint(4)[:1])
            at += size
        machine.write_code(begin, bytes(content))
        found = [self._made(sample) for sample in samples]
        self.made = machine.snapshot()
        # What it writes, so that each can be executed with its own breakpoint alone: the targets
        # of others' jumps lie among them.
        for i, placed in enumerate(found):
            if placed.probe is not None:
                self.module.enable(placed.probe)
                sample = placed.sample
                patch = machine.read(sample.address, len(sample.code))
                found[i] = replace(placed, patch=patch)
        self.restart()
        return found

    def _made(self, sample: Sample) -> PlacedProbe:
        before, after = self.around(sample.code)
        begin, end = sample.address - len(before), sample.after + len(after)
        try:
            error = self.module.make(NAME, begin, end - begin)
        except CallError:
            raise _Lost(sample) from None
        probe = self.module.probes(sample.address, sample.after).get(sample.address)
        if probe is not None and probe.place in self._old:
            probe = None
        return PlacedProbe(sample, probe, error)

    # -- executions ---------------------------------------------------------------------------

    def restart(self) -> None:
        """Back to where nothing was executed, and no probe is enabled."""
        self.machine.restore(self.made)

    def make_way(self, sample: Sample, pc: int) -> None:
        """Have an instruction where a sample goes on: Unicorn does not stop before what is none."""
        code = self.arch.prologue
        if self.machine.image.holds_code(pc) and not (
                sample.address - len(code) < pc < sample.after):
            self.machine.write_code(pc, code)

    def enable(self, placed: PlacedProbe, on: bool) -> None:
        """Write what the module writes to enable a probe, or to disable it."""
        self.machine.write_code(placed.sample.address,
                                placed.patch if on else placed.sample.code)

    def prepare(self, sample: Sample, number: int) -> None:
        """The random state, about to execute the instruction."""
        machine = self.machine
        values, vectors = self.state(number, sample.code)
        for view, content in zip(self._views, self._content, strict=True):
            view[:] = content
        self._watch(sample, number)
        engine = machine.engine
        engine.instructions, engine.skew = self._clock
        for name, value in (values | self._fixed).items():
            machine.write_register(name, value)
        machine.write_register(machine.arch.sp, self.sp)
        for (register, bits), value in zip(self.arch.vectors, vectors, strict=True):
            engine.write_bytes(register, value.to_bytes(bits // 8, "little"))
        machine.pc = sample.address

    def _watch(self, sample: Sample, number: int) -> None:
        """What a sample reads and writes relative to itself is what it was; in mixed states it is a
        number that can be divided by."""
        machine = self.machine
        if self._watched[0] is not sample:
            self._put(self._watched[1])
            there = {at: machine.read(at, WATCHED) for segment, at in
                     machine.arch.placed_operands(sample.code, sample.address) if not segment
                     and None not in (machine.translate(at), machine.translate(at + WATCHED - 1))}
            self._watched = sample, there
        before = self._watched[1]
        if MIXED <= number < HALVES:
            before = {at: content if machine.image.holds_code(at) else DIVISOR * WATCHED
                      for at, content in before.items()}
        self._put(before)
        self._before = before
        if self.arch.protection is not None:
            self._protect(*self.arch.protection, not (before and MIXED <= number < HALVES))

    def _protect(self, register: str, bit: int, wanted: bool) -> None:
        """In mixed states what a sample writes relative to itself may be code."""
        value = self.machine.read_register(register)
        if bool(value & bit) != wanted:
            self.machine.write_register(register, value ^ bit)

    def _put(self, contents: dict[int, bytes]) -> None:
        for at, content in contents.items():
            if self.machine.read(at, WATCHED) != content:
                self.machine.write(at, content)

    def in_place(self, sample: Sample, number: int) -> Outcome:
        """Executed where it stands."""
        self.prepare(sample, number)
        machine = self.machine
        stop = machine.run(Until(addresses=[*self._guess(sample, number), *self.faults],
                                 instructions=machine.instructions + LIMIT))
        if stop.reason is StopReason.UNHANDLED:
            return self._lost(NOWHERE, 0)
        if stop.reason is StopReason.ADDRESS and stop.pc in self.faults:
            return self._outcome(stop.pc, {})
        if stop.reason is StopReason.ADDRESS:
            return self._outcome(stop.pc, None)
        if stop.pc == sample.address:
            return self._lost(REPEATS, 0)
        self.prepare(sample, number)  # somewhere else: one instruction alone
        machine.run(Until(instructions=machine.instructions + 1))
        return self._outcome(machine.pc, None)

    def interrupted(self, placed: PlacedProbe, number: int, expected: Outcome) -> Outcome | None:
        """As ``displaced``, and a key is typed when the trampoline is about to be executed: where
        interrupts are admitted there, it is left, another thread runs, and it is come back to.

        :return: None where it does not come to the trampoline.
        """
        assert placed.probe is not None
        machine, sample = self.machine, placed.sample
        at = self.arch.trampoline(self.module, placed.probe)
        self.prepare(sample, number)
        stop = machine.run(Until(addresses=[at, *self.faults],
                                 instructions=machine.instructions + LIMIT))
        if stop.reason is not StopReason.ADDRESS or stop.pc != at:
            return None
        machine.type(b"x")
        return self._until(sample, expected, LONG)

    def displaced(self, sample: Sample, number: int, expected: Outcome) -> Outcome:
        """Executed under the module's probe, until it is where it goes on in place."""
        self.prepare(sample, number)
        return self._until(sample, expected, LIMIT)

    def _until(self, sample: Sample, expected: Outcome, limit: int) -> Outcome:
        machine = self.machine
        stops = {*self.faults, sample.after}
        if not expected.fault:
            stops.add(expected.pc)
        end = machine.instructions + limit
        for _ in range(PASSES):
            stop = machine.run(Until(addresses=list(stops), instructions=end))
            if stop.reason is StopReason.UNHANDLED:
                return self._lost(NOWHERE, 0)
            if stop.reason is not StopReason.ADDRESS:
                return self._lost(str(stop.reason.value), stop.pc)
            sp = machine.sp
            if stop.pc in self.faults or stop.pc != expected.pc or (
                    sp == expected.registers[machine.arch.sp]):
                return self._outcome(stop.pc, expected.memory)
        return self._lost("it does not come back", machine.pc)

    def _lost(self, why: str, pc: int) -> Outcome:
        at = f", at {self.machine.image.symbols.where(pc)}" if pc else ""
        return Outcome({}, (), {}, pc, why + at)

    def _outcome(self, pc: int, like: ChangedPages | None) -> Outcome:
        machine = self.machine
        fault = self.faults.get(pc)
        if fault is None:
            registers = {name: machine.read_register(name) for name in self._compared}
            registers[self.arch.flags] = (machine.read_register(self.arch.flags)
                                          & self.arch.compared_flags)
        else:
            registers, pc = self._faulted(fault), 0
            about = machine.read_register(self.arch.fault_address) & self.arch.fault_mask
            fault = _fault(about)
        vectors = tuple(int.from_bytes(machine.engine.read_bytes(register, bits // 8), "little")
                        for register, bits in self.arch.vectors)
        return Outcome(registers, vectors,
                       self._memory(like, 0 if fault else machine.sp), pc, fault or "")

    def gone(self, sample: Sample, outcome: Outcome) -> bool:
        """Whether a sample that was just executed in place did all that it does: what faults is
        where it leads to."""
        at = self.fault_at
        return (not sample.address <= at < sample.after
                and outcome.fault == _fault(at & self.arch.fault_mask))

    def _faulted(self, fault: str) -> dict[str, int]:
        """The registers that the kernel's fault handler sees, but where it was."""
        register, machine = self.arch.faults[fault], self.machine
        self.fault_at, self.unknown = 0, False
        if register is None:
            return {}
        frame, layout = machine.read_register(register), machine.guest.traps.trap_frame
        pc = self.trap.names.get(machine.arch.pc, machine.arch.pc)
        found = {}
        try:
            self.fault_at = layout.read(machine, frame, pc)
            if self.arch.unknown is not None:
                member, number = self.arch.unknown
                self.unknown = layout.read(machine, frame, member) == number
            for name in self._compared:
                name_there = self.trap.names.get(name, name)
                if name_there in layout.fields and name not in self.arch.fixed:
                    found[name] = layout.read(machine, frame, name_there)
        except MemoryAccessError:
            return {}
        return found

    def _memory(self, like: ChangedPages | None, sp: int) -> ChangedPages:
        """The pages that have changed.

        :param like: what has changed in place: below the stack pointer, before and after, which
            traps write to, nothing else counts.
        """
        found, end = dict[int, bytes](), max(self.sp, sp)
        for address, content in self._before.items():
            now = self.machine.read(address, WATCHED)
            if now != content and (like is None or address in like):  # the kernel may write there
                found[address] = now
        for address, view, content in zip(self._pages, self._views, self._content, strict=True):
            now = bytes(view)
            if now == content:
                continue
            below = max(0, min(PAGE, end - address)) if address >= self.stack[0] else 0
            if like is not None and below:
                was, did = content[:below], like.get(address, content)[:below]
                mine = was if was == did else bytes(new if old != then else old for new, old, then
                                                    in zip(now[:below], was, did, strict=True))
                now = mine + now[below:]
            if now != content:
                found[address] = now
        return found

    def has_stack(self, outcome: Outcome) -> bool:
        """Whether the kernel can go on after it: there is a stack, and what it needs is there."""
        if outcome.fault:
            return True
        sp = outcome.registers[self.machine.arch.sp]
        if self.machine.read_u64(self._cpu) != self._thread:
            self.restart()
            return False
        return (self.stack[0] + LEAST_STACK <= sp < self.stack[1]
                and all(outcome.registers.get(name, value) == value
                        for name, value in self._fixed.items()))

    def _guess(self, sample: Sample, number: int) -> list[int]:
        """Where an instruction may go on, by our own table."""
        verdict = self.trap.classify(sample.code, sample.address)[1]
        if isinstance(verdict, Copy | Rewrite | Refuse):
            return [sample.after]
        values, _vectors = self.state(number, sample.code)
        state = _Guess(self, values | self._fixed | {self.machine.arch.sp: self.sp})
        try:
            pc = verdict.next_pc(state) & MASK
        except MemoryAccessError:
            return [sample.after]
        return [sample.after, pc] if self.machine.translate(pc) is not None else [sample.after]


@dataclass
class _Guess:
    """A random state that an emulation is carried out on; memory as it is, and not written."""

    trial: Trial
    values: dict[str, int]

    def get(self, register: str) -> int:
        if register in ("xzr", "zero"):
            return 0
        if register in self.values:
            return self.values[register]
        return self.trial.machine.read_register(register)

    def set(self, register: str, value: int) -> None:
        self.values[register] = value & MASK

    def set_vector(self, number: int, value: int) -> None:
        return None

    def load(self, address: int, size: int) -> int:
        return int.from_bytes(self.trial.machine.read(address & MASK, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        return None
