"""The laboratory: an instruction in place and displaced, from the same random states.

Both are executed by Unicorn on flat memory, without a kernel: in place at its address, and under a
breakpoint that the native dispatcher answers, in a trampoline or emulated.  An emulation is also
carried out by its verdict, in Python.  Registers, flags, memory, the next pc and faults must be
equal.  Pages appear where the instruction touches them, with contents that depend on the address
and the seed.

Where it can execute them, the host's own CPU is another judge (``Judge``): it knows instructions
that Unicorn's model does not.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import unicorn

from emu.arch import Arch
from emu.errors import KinstError
from emu.parts import Parts
from emu.unicorn import _engine
from emu.unicorn._engine import Engine, EngineStop
from emu.unicorn.guest_memory import GuestMemory
from emu.unicorn.machine import library_symbols
from kinst.code import lowering
from kinst.code.shared import TrapPath
from kinst.code.verdict import Copy, Refuse, Rewrite, Verdict, summary
from kinst.trampoline import SLOT
from kinst.trap import GuestTrap

CODE, SLOTS, DATA = 0x4000_0000, 0x4001_0000, 0x5000_0000
PAGE = 0x1000
MAX_PAGES, MAX_STEPS = 64, 4096
MASK = (1 << 64) - 1
NOT_SEEN = f"libunicorn error {unicorn.UC_ERR_MAP}"
UNKNOWN = "the CPU model does not know it"
ON_HOST = "on the host"
EXECUTED = "executed"  # by the host, without a fault in some state
Memory = dict[int, bytes]  # pages that are not what they were


class Bench(ABC):
    """What the laboratory must know of an architecture."""

    uc_arch: ClassVar[int]
    uc_mode: ClassVar[int]
    cpu_model: ClassVar[int]
    arch: ClassVar[Arch]
    fixed: ClassVar[int] = 0  # bytes of every instruction, or 0
    general: ClassVar[dict[str, int]]  # registers compared and set at random -> Unicorn's numbers
    pc: ClassVar[int]
    flags: ClassVar[tuple[str, int]]  # the flags register and its bits that are set at random
    vectors: ClassVar[Sequence[tuple[int, int]]]  # Unicorn's numbers, and bits
    control: ClassVar[Mapping[str, int]] = {}  # of the general ones: not random, but this
    preset: ClassVar[Sequence[tuple[int, int]]] = ()  # set before each execution, not compared
    trap_pc_offset: ClassVar[int] = 0  # how far Unicorn moves pc before it reports an exception
    unknown: ClassVar[frozenset[str]]  # the faults of what the CPU model does not know

    def prepare(self, engine: Any) -> None:
        """Bring a new engine into the kernel's mode."""
        return None

    def adapt(self, code: bytes, values: dict[str, int]) -> None:
        """Change a random state where an instruction would otherwise run too long."""
        return None

    def repeats(self, code: bytes) -> bool:
        """Whether an instruction repeats itself."""
        return False

    def judge(self, seed: int) -> "Judge | None":
        """The host's own CPU, where it is of the architecture.

        :raises KinstError: when the host does not let us use it.
        """
        return None

    def not_judged(self, code: bytes) -> str | None:
        """Why the host's CPU does not execute an instruction: it would not be the same twice."""
        return None

    @abstractmethod
    def not_executed(self, code: bytes) -> str | None:
        """Why an instruction is not executed here, though it could be probed: it would change the
        machine under the laboratory."""


@dataclass(frozen=True)
class Outcome:
    """What an execution left behind."""

    registers: Mapping[str, int]
    vectors: tuple[int, ...]
    memory: Memory
    pc: int
    fault: str


class Judge(Protocol):
    """A CPU that executes instructions by itself, on memory like a bed's."""

    unknown: ClassVar[str]  # the fault of what it does not know
    compared: ClassVar[Mapping[str, int]]  # registers that an emulation may change: their bits

    @property
    def crowded(self) -> bool:
        """There is hardly room for more pages."""

    def prepare(self, values: dict[str, int], vectors: list[int]) -> dict[str, int]:
        """A random state as this CPU can have it."""

    def run(self, values: dict[str, int], code: bytes, slot: int, body: bytes,
            repeats: bool) -> Outcome:
        """Execute ``code`` at CODE, or its trampoline ``body`` at ``slot`` (0: there is none)."""

    def refill(self, code: bytes) -> dict[int, bytes]:
        """Make memory what it is at the beginning; what that is."""

    def changed(self, before: dict[int, bytes], size: int) -> Memory:
        """The pages that have changed; ``size`` bytes at CODE do not count."""

    def map(self, address: int) -> bool: ...

    def read(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Mismatch:
    """Two outcomes that should have been one.

    :param state: the number of the random state.
    :param how: what was compared with the execution in place.
    """

    code: bytes
    address: int
    state: int
    verdict: str
    in_place: Outcome
    displaced: Outcome
    how: str = "displaced"

    def differences(self) -> list[str]:
        """One line for everything that differs, in place first."""
        lines = []
        one, two, how = self.in_place, self.displaced, self.how
        for name, value in one.registers.items():
            if value != two.registers[name]:
                lines.append(f"{name}: {value:#x} in place, {two.registers[name]:#x} {how}")
        for i, (a, b) in enumerate(zip(one.vectors, two.vectors, strict=True)):
            if a != b:
                lines.append(f"vector register {i}: {a:#x} in place, {b:#x} {how}")
        for page in sorted(one.memory.keys() | two.memory.keys()):
            x, y = one.memory.get(page), two.memory.get(page)
            if x != y:
                at = next((i for i in range(0, PAGE, 8)
                           if x is None or y is None or x[i : i + 8] != y[i : i + 8]), 0)
                lines.append(f"memory at {page + at:#x}: {_word(x, at)} in place, "
                             f"{_word(y, at)} {how}")
        if one.pc != two.pc:
            lines.append(f"next pc: {one.pc:#x} in place, {two.pc:#x} {how}")
        if one.fault != two.fault:
            lines.append(f"fault: {one.fault or 'none'} in place, {two.fault or 'none'} {how}")
        return lines


def _word(page: bytes | None, at: int) -> str:
    return "not written" if page is None else page[at : at + 8].hex(" ")


class Bed:
    """A CPU on flat memory; one for each side of an experiment."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.seed = bench, seed
        self.uc = unicorn.Uc(bench.uc_arch, bench.uc_mode)
        self.uc.ctl_set_cpu_model(bench.cpu_model)
        self.uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        bench.prepare(self.uc)
        self.engine = Engine(self.uc, library_symbols(), bench.pc, bench.fixed)
        self.engine.set_flat()
        self.area = GuestMemory((MAX_PAGES + 1) * PAGE)
        self.pages: dict[int, int] = {}  # guest address -> offset in the area
        self.contents: dict[int, bytes] = {}
        self.kept: dict[int, bytes] = {}  # the pages of code and trampolines
        self.size = 0
        self.uc.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._unmapped)
        for page in (CODE, SLOTS, DATA):
            self.map(page)
        self.keep(0)

    def _unmapped(self, _uc: Any, kind: int, address: int, size: int, _value: int,
                  _data: object) -> bool:
        if kind == unicorn.UC_MEM_FETCH_UNMAPPED:
            return False
        try:
            return self.map(address) and self.map(address + size - 1)
        except _engine.EngineError:
            return False

    def map(self, address: int) -> bool:
        """Make the page of an address appear; false when there are too many."""
        page = address & MASK & ~(PAGE - 1)
        if page not in self.pages:
            if len(self.pages) == MAX_PAGES:
                return False
            at = len(self.pages) * PAGE
            self.engine.map_ram(page, self.area.view[at : at + PAGE])
            self.pages[page] = at
            self.contents[page] = random.Random(self.seed ^ page).randbytes(PAGE)
            self.area.view[at : at + PAGE] = self.contents[page]
        return True

    def read(self, address: int, size: int) -> bytes:
        out = bytearray()
        for i in range(address, address + size):
            page = i & MASK & ~(PAGE - 1)
            out.append(self.area.view[self.pages[page] + (i & PAGE - 1)])
        return bytes(out)

    def write(self, address: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            at = address + i & MASK
            self.area.view[self.pages[at & ~(PAGE - 1)] + at % PAGE] = byte

    def place(self, code: bytes) -> None:
        """Put an instruction at CODE, on a page that is otherwise as it always is."""
        at = self.pages[CODE]
        self.area.view[at : at + PAGE] = code + self.contents[CODE][len(code) :]
        self.engine.remove_translations(CODE, CODE + PAGE)

    def keep(self, size: int) -> None:
        """What stands around the instruction now is what it finds there.

        :param size: bytes of it, at CODE, which a breakpoint may be over.
        """
        self.kept = {page: self._around(page, size) for page in (CODE, SLOTS)}
        self.size = size

    def _around(self, page: int, size: int) -> bytes:
        at = self.pages[page]
        content = bytes(self.area.view[at : at + PAGE])
        return bytes(size) + content[size:] if page == CODE else content

    def refill(self) -> None:
        """Data as it was before anything was executed."""
        for page in self.memory():
            if page not in self.kept:
                at = self.pages[page]
                self.area.view[at : at + PAGE] = self.contents[page]

    def memory(self) -> Memory:
        """The pages that have changed; of the instruction's own, all but the instruction."""
        found = {}
        for page, at in self.pages.items():
            if page in self.kept:
                content = self._around(page, self.size)
                if content != self.kept[page]:
                    found[page] = content
                continue
            content = bytes(self.area.view[at : at + PAGE])
            if content != self.contents[page]:
                found[page] = content
        return found

    def set(self, values: dict[str, int], vectors: Sequence[int]) -> None:
        for register, value in self.bench.preset:
            self.engine.write(register, value)
        for name, value in values.items():
            self.engine.write(self.bench.general[name], value)
        for (register, bits), value in zip(self.bench.vectors, vectors, strict=True):
            self.engine.write_bytes(register, value.to_bytes(bits // 8, "little"))

    def get(self) -> tuple[dict[str, int], tuple[int, ...]]:
        name, bits = self.bench.flags
        values = {n: self.engine.read(r) for n, r in self.bench.general.items()}
        if name:
            values[name] &= bits
        return values, tuple(
            int.from_bytes(self.engine.read_bytes(register, size // 8), "little")
            for register, size in self.bench.vectors
        )

    def run(self, after: int, steps: int) -> tuple[int, str]:
        """Execute what is at CODE, which ends before ``after``.

        :return: the next pc, and the fault or an empty string.
        """
        engine, bench = self.engine, self.bench
        engine.thaw()
        engine.instructions = 0
        engine.limit = steps
        engine.set_exits([after])
        why, detail = engine.run(CODE)
        if why == EngineStop.STOP_UNCOUNTED and engine.unknown_block[0] == CODE:
            engine.learn(*engine.unknown_block, 1)
            why, detail = engine.run(CODE)
        pc = engine.read(bench.pc)
        fault = ""
        if why == EngineStop.STOP_EXCEPTION:
            fault, pc = f"exception {detail}", pc - bench.trap_pc_offset
        elif why == EngineStop.STOP_INVALID:
            fault = "invalid instruction"
        elif why == EngineStop.STOP_IN_PLACE:
            fault = "memory out of reach"
        elif why == EngineStop.STOP_ERROR and (
            detail != unicorn.UC_ERR_FETCH_UNMAPPED or CODE <= pc < after
        ):  # where a jump leads to, nothing needs to be mapped: that is not the jump's fault
            fault = f"libunicorn error {detail}"
        return (engine.abandon(pc) if fault else pc), fault


class Unreachable(Exception):
    """An emulation has touched memory that cannot be there."""


@dataclass
class _Registers:
    """The State of an emulation: registers of a random state, memory of a bed."""

    bed: "Bed | Judge"
    values: dict[str, int]
    vectors: list[int]

    def get(self, register: str) -> int:
        return 0 if register in ("xzr", "zero") else self.values[register]

    def set(self, register: str, value: int) -> None:
        if register not in ("xzr", "zero"):
            self.values[register] = value & MASK

    def set_vector(self, number: int, value: int) -> None:
        if number < len(self.vectors):
            self.vectors[number] = value

    def load(self, address: int, size: int) -> int:
        self._reach(address, size)
        return int.from_bytes(self.bed.read(address, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        self._reach(address, size)
        self.bed.write(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))

    def _reach(self, address: int, size: int) -> None:
        if not (self.bed.map(address) and self.bed.map(address + size - 1)):
            raise Unreachable


class Laboratory:
    """Executes instructions of one architecture."""

    def __init__(self, bench: Bench, trap: GuestTrap, seed: int, host: bool = False) -> None:
        self.bench, self.trap, self.seed = bench, trap, seed
        self.judge: Judge | None = None
        self.judged: Counter[str] = Counter()  # what became of encodings there
        self._states: dict[int, tuple[dict[str, int], list[int]]] = {}
        self._new_beds()
        if host:
            self.judge = bench.judge(seed)
            if self.judge is None:
                raise KinstError(f"--judge host: the host's CPU does not execute "
                                 f"{bench.arch.name}'s instructions")

    def _new_beds(self) -> None:
        self.plain, self.probed = Bed(self.bench, self.seed), Bed(self.bench, self.seed)
        self.dispatcher, self.templates = lowering.dispatcher(
            self.bench.arch, self.trap, self.probed.engine
        )
        self.dispatcher.choose(TrapPath.DIRECT)
        self.dispatcher.record("count")
        self.dispatcher.listen(0, 0, 0)

    # -- states -------------------------------------------------------------------------------

    def state(self, number: int) -> tuple[dict[str, int], list[int]]:
        """The random state of that number: general registers, vector registers."""
        if number not in self._states:
            self._states[number] = self._make_state(number)
        values, vectors = self._states[number]
        return dict(values), list(vectors)

    def _make_state(self, number: int) -> tuple[dict[str, int], list[int]]:
        generator = random.Random(self.seed << 20 ^ number)
        kinds = (
            lambda: DATA + generator.randrange(0, PAGE, 8),
            lambda: generator.randrange(-8, 300) & MASK,
            lambda: generator.getrandbits(64),
            lambda: DATA + generator.randrange(0, PAGE),
            lambda: generator.getrandbits(32) << 32,  # nothing in the lower half
            lambda: generator.choice((0, 1, MASK, 1 << 63, 1 << 31)),
        )
        values = {name: generator.choice(kinds)() for name in self.bench.general}
        for name in ("rsp", "sp"):
            if name in values:
                values[name] = DATA + 0x800
        name, bits = self.bench.flags
        if name:
            values[name] = generator.getrandbits(64) & bits
        values |= self.bench.control
        return values, [generator.getrandbits(bits) for _register, bits in self.bench.vectors]

    # -- experiments --------------------------------------------------------------------------

    def test(self, code: bytes, states: int) -> tuple[str, Mismatch | None]:
        """One encoding: its verdict, and the first state where it fails.

        The verdict is ``copy``, ``rewrite``, ``emulate``, ``refuse: ...`` or ``not executed: ...``.
        """
        length, verdict = self.trap.classify(code, CODE)
        if isinstance(verdict, Refuse) or length != len(code):
            return summary(verdict if isinstance(verdict, Refuse)
                           else Refuse("is not one instruction")), None
        word, mismatch = self._by_model(code, verdict, states)
        if self.judge is None or mismatch is not None:
            return word, mismatch
        how, mismatch = self._by_host(code, verdict, states)
        self.judged[how] += 1
        return word if mismatch is None and how != EXECUTED else summary(verdict), mismatch

    def _by_model(self, code: bytes, verdict: Verdict, states: int) -> tuple[str, Mismatch | None]:
        reason = self.bench.not_executed(code)
        if reason is not None:
            return f"not executed: {reason}", None
        word = summary(verdict)
        for number in range(states):
            in_place = self._again(code, verdict, number)
            for how, outcome in self._others:
                if outcome != in_place:
                    return word, Mismatch(code, CODE, number, word, in_place, outcome, how)
            if in_place.fault in self.bench.unknown:
                return f"not executed: {UNKNOWN}", None
        return word, None

    def _by_host(self, code: bytes, verdict: Verdict, states: int) -> tuple[str, Mismatch | None]:
        """What became of an encoding on the host's own CPU."""
        reason = self.bench.not_judged(code)
        if reason is not None:
            return f"not executed: {reason}", None
        assert self.judge is not None
        if self.judge.crowded:
            self.judge.close()
            self.judge = self.bench.judge(self.seed)
            assert self.judge is not None
        judge, executed = self.judge, False
        slot, body = self._trampoline(code)
        for number in range(states):
            values, vectors = self.state(number)
            self.bench.adapt(code, values)
            values = judge.prepare(values, vectors)
            repeats = self.bench.repeats(code)
            in_place = judge.run(values, code, 0, b"", repeats)
            if in_place.fault == judge.unknown:
                return "not executed: the host's CPU does not know it", None
            if isinstance(verdict, Copy | Rewrite):
                outcome = judge.run(values, code, slot, body, repeats)
                if outcome != in_place:  # again: a page may have appeared for one alone
                    in_place = judge.run(values, code, 0, b"", repeats)
                    outcome = judge.run(values, code, slot, body, repeats)
            elif in_place.fault:
                continue  # an emulation says nothing of faults: it is left to the kernel
            else:
                in_place, outcome = self._on_host(code, verdict, values, in_place)
            executed = executed or not in_place.fault
            if outcome != in_place:
                return EXECUTED, Mismatch(code, CODE, number, summary(verdict), in_place, outcome,
                                          ON_HOST)
        return EXECUTED if executed else "not executed: it faults in every state", None

    def _on_host(self, code: bytes, verdict: Verdict, values: dict[str, int],
                 in_place: Outcome) -> tuple[Outcome, Outcome]:
        """In place, and by an emulation on the judge's memory; what both can tell."""
        assert self.judge is not None
        assert not isinstance(verdict, Copy | Rewrite | Refuse)
        judge, bits = self.judge, self.judge.compared
        before = judge.refill(code)
        state = _Registers(judge, dict(values), [])
        try:
            pc = verdict.next_pc(state)
        except Unreachable:
            return in_place, replace(in_place, fault="memory that the emulation cannot reach")
        after = {name: state.values[name] & mask for name, mask in bits.items()}
        memory = judge.changed(before, len(code))
        return (replace(in_place, registers={
                    name: in_place.registers[name] & mask for name, mask in bits.items()}),
                Outcome(after, in_place.vectors, memory, pc, ""))

    def _trampoline(self, code: bytes) -> tuple[int, bytes]:
        """Its address and bytes; (0, none) of what is emulated."""
        bed, dispatcher = self.probed, self.dispatcher
        bed.place(code)
        dispatcher.add(CODE, code, 0, 0)
        dispatcher.use_slots(SLOTS, SLOTS, PAGE, 2, False)
        dispatcher.enable()
        known = dispatcher.template(CODE)
        slot = known[1] if known is not None else 0
        body = bed.read(slot, SLOT) if slot else b""
        dispatcher.disable()
        dispatcher.clear()
        return slot, body

    def close(self) -> None:
        """End what the judge has started."""
        if self.judge is not None:
            self.judge.close()
            self.judge = None

    def _again(self, code: bytes, verdict: Verdict, number: int) -> Outcome:
        """Unicorn sometimes does not see a page that was mapped while it asked for it, or loses
        what is written to it; the second time the page is there from the beginning."""
        for _attempt in range(4):
            before = len(self.plain.pages)
            in_place = self._in_place(code, number)
            self._others = []
            if not isinstance(verdict, Copy | Rewrite):
                self._others.append(("by the verdict", self._emulated(code, verdict, number)))
            for page in list(self.plain.pages):
                self.probed.map(page)
            self._others.append(("displaced", self._displaced(code, number)))
            for page in list(self.probed.pages):
                self.plain.map(page)
            outcomes = [in_place, *(outcome for _how, outcome in self._others)]
            faulted = any(o.fault for o in outcomes)
            if faulted or len(self.plain.pages) > MAX_PAGES // 2:
                # Unicorn never finishes an exception: the next would be a double fault.
                pages = [] if len(self.plain.pages) > MAX_PAGES // 2 else list(self.plain.pages)
                self._new_beds()
                for page in pages:
                    self.plain.map(page)
                    self.probed.map(page)
            if len(self.plain.pages) <= before and not any(o.fault == NOT_SEEN for o in outcomes):
                break
        return in_place

    def _steps(self, code: bytes) -> int:
        return MAX_STEPS if self.bench.repeats(code) else 1

    def _prepared(self, bed: Bed, code: bytes, number: int) -> tuple[dict[str, int], list[int]]:
        values, vectors = self.state(number)
        self.bench.adapt(code, values)
        bed.refill()
        bed.set(values, vectors)
        return values, vectors

    def _in_place(self, code: bytes, number: int) -> Outcome:
        bed = self.plain
        bed.place(code)
        self._prepared(bed, code, number)
        bed.keep(len(code))
        pc, fault = bed.run(CODE + len(code), self._steps(code))
        registers, vectors = bed.get()
        return Outcome(registers, vectors, bed.memory(), pc, fault)

    def _displaced(self, code: bytes, number: int) -> Outcome:
        bed, dispatcher = self.probed, self.dispatcher
        bed.place(code)
        self._prepared(bed, code, number)
        dispatcher.add(CODE, code, 0, 0)
        dispatcher.use_slots(SLOTS, SLOTS, PAGE, 2, False)
        dispatcher.enable()
        bed.engine.remove_translations(SLOTS, SLOTS + PAGE)
        bed.keep(len(code))
        pc, fault = bed.run(CODE + len(code), 1)
        registers, vectors = bed.get()
        memory = bed.memory()
        dispatcher.disable()
        dispatcher.clear()
        return Outcome(registers, vectors, memory, pc, fault)

    def _emulated(self, code: bytes, verdict: Verdict, number: int) -> Outcome:
        assert not isinstance(verdict, Copy | Rewrite | Refuse)
        bed = self.plain
        bed.place(code)
        values, vectors = self._prepared(bed, code, number)
        bed.keep(len(code))
        state = _Registers(bed, values, vectors)
        pc = verdict.next_pc(state)
        name, bits = self.bench.flags
        if name:
            state.values[name] &= bits
        return Outcome(state.values, tuple(state.vectors), bed.memory(), pc, "")


BENCHES: Parts[type[Bench]] = Parts("kinst.{}.bench", "BENCH")
