"""The laboratory: an instruction in place and displaced, from the same random states.

Both are executed by Unicorn on flat memory, without a kernel: in place at its address, and as the
provider would displace it, in a trampoline or emulated.  Registers, flags, memory written, the
next pc and faults must be equal.  Pages appear where the instruction touches them, with contents
that depend on the address and the seed.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import unicorn

from kinst.trap import GuestTrap
from kinst.verdict import Copy, Refuse, Rewrite, Verdict, summary

CODE, SLOT, DATA = 0x4000_0000, 0x4001_0000, 0x5000_0000
PAGE = 0x1000
MAX_PAGES, MAX_STEPS = 64, 4096
MASK = (1 << 64) - 1
NOT_SEEN = f"libunicorn error {unicorn.UC_ERR_MAP}"


class Bench(ABC):
    """What the laboratory must know of an architecture."""

    uc_arch: ClassVar[int]
    uc_mode: ClassVar[int]
    cpu_model: ClassVar[int]
    general: ClassVar[dict[str, int]]  # registers compared and set at random -> Unicorn's numbers
    pc: ClassVar[int]
    flags: ClassVar[tuple[str, int]]  # the flags register and its bits that are set at random
    vectors: ClassVar[Sequence[int]]
    vector_bits: ClassVar[int] = 128
    trap_pc_offset: ClassVar[int] = 0  # how far Unicorn moves pc before it reports an exception

    def prepare(self, engine: Any) -> None:
        """Bring a new engine into the kernel's mode."""
        return None

    def adapt(self, code: bytes, values: dict[str, int]) -> None:
        """Change a random state where an instruction would otherwise run too long."""
        return None

    @abstractmethod
    def not_executed(self, code: bytes) -> str | None:
        """Why an instruction is not executed here, though it could be probed: it would change the
        machine under the laboratory."""


@dataclass(frozen=True)
class Outcome:
    """What an execution left behind."""

    registers: dict[str, int]
    vectors: tuple[int, ...]
    writes: tuple[tuple[int, int, int], ...]
    pc: int
    fault: str


@dataclass(frozen=True)
class Mismatch:
    """Two outcomes that should have been one; ``state`` is the number of the random state."""

    code: bytes
    address: int
    state: int
    verdict: str
    in_place: Outcome
    displaced: Outcome

    def differences(self) -> list[str]:
        """One line for everything that differs, in place first."""
        lines = []
        for name, value in self.in_place.registers.items():
            other = self.displaced.registers[name]
            if value != other:
                lines.append(f"{name}: {value:#x} in place, {other:#x} displaced")
        for i, (one, two) in enumerate(
            zip(self.in_place.vectors, self.displaced.vectors, strict=True)
        ):
            if one != two:
                lines.append(f"vector register {i}: {one:#x} in place, {two:#x} displaced")
        if self.in_place.writes != self.displaced.writes:
            lines.append(f"memory written: {_writes(self.in_place)} in place, "
                         f"{_writes(self.displaced)} displaced")
        if self.in_place.pc != self.displaced.pc:
            lines.append(f"next pc: {self.in_place.pc:#x} in place, "
                         f"{self.displaced.pc:#x} displaced")
        if self.in_place.fault != self.displaced.fault:
            lines.append(f"fault: {self.in_place.fault or 'none'} in place, "
                         f"{self.displaced.fault or 'none'} displaced")
        return lines


def _writes(outcome: Outcome) -> str:
    return " ".join(f"[{a:#x}]={v:#x}" for a, _size, v in outcome.writes) or "nothing"


@dataclass
class _Registers:
    """The State of an emulation: registers of a random state, memory of the engine."""

    laboratory: "Laboratory"
    values: dict[str, int]
    writes: list[tuple[int, int, int]] = field(default_factory=list)

    def get(self, register: str) -> int:
        return 0 if register in ("xzr", "zero") else self.values[register]

    def set(self, register: str, value: int) -> None:
        if register not in ("xzr", "zero"):
            self.values[register] = value & MASK

    def load(self, address: int, size: int) -> int:
        return int.from_bytes(self.laboratory.read(address, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        self.writes.append((address, size, value))


class Laboratory:
    """Executes instructions of one architecture."""

    def __init__(self, bench: Bench, trap: GuestTrap, seed: int) -> None:
        self.bench, self.trap, self.seed = bench, trap, seed
        self._new_engine()

    def _new_engine(self) -> None:
        bench = self.bench
        self.engine = unicorn.Uc(bench.uc_arch, bench.uc_mode)
        self.engine.ctl_set_cpu_model(bench.cpu_model)
        self.engine.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        bench.prepare(self.engine)
        self._pages: set[int] = set()
        self._writes: list[tuple[int, int, int]] = []
        self._fault = ""
        self.engine.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._written)
        self.engine.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._unmapped)
        self.engine.hook_add(unicorn.UC_HOOK_INTR, self._interrupt)
        self.engine.hook_add(unicorn.UC_HOOK_INSN_INVALID, self._invalid)
        for page in (CODE - PAGE, CODE, SLOT, DATA):
            self._map(page)

    # -- hooks --------------------------------------------------------------------------------

    def _written(self, _uc: Any, _kind: int, address: int, size: int, value: int,
                 _data: object) -> None:
        self._writes.append((address, size, value & (1 << 8 * size) - 1))

    def _unmapped(self, _uc: Any, kind: int, address: int, size: int, _value: int,
                  _data: object) -> bool:
        if kind == unicorn.UC_MEM_FETCH_UNMAPPED or len(self._pages) >= MAX_PAGES:
            return False
        try:
            self._map(address & ~(PAGE - 1))
            self._map(address + size - 1 & MASK & ~(PAGE - 1))
        except unicorn.UcError:
            return False
        return True

    def _interrupt(self, engine: Any, number: int, _data: object) -> None:
        self._fault = f"exception {number}"
        engine.emu_stop()

    def _invalid(self, engine: Any, _data: object) -> bool:
        self._fault = "invalid instruction"
        engine.emu_stop()
        return True

    def _map(self, page: int) -> None:
        if page not in self._pages:
            self.engine.mem_map(page, PAGE)
            self._pages.add(page)
            self._fill(page)

    def _fill(self, page: int) -> None:
        content = random.Random(self.seed ^ page).randbytes(PAGE)
        self.engine.mem_write(page, content)

    def read(self, address: int, size: int) -> bytes:
        """Memory as the instruction would see it."""
        for page in {address & ~(PAGE - 1), address + size - 1 & MASK & ~(PAGE - 1)}:
            self._map(page)
        return bytes(self.engine.mem_read(address, size))

    # -- states -------------------------------------------------------------------------------

    def state(self, number: int) -> tuple[dict[str, int], list[int]]:
        """The random state of that number: general registers, vector registers."""
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
        return values, [
            generator.getrandbits(self.bench.vector_bits) for _ in self.bench.vectors
        ]

    def _set(self, values: dict[str, int], vectors: list[int]) -> None:
        for name, value in values.items():
            self.engine.reg_write(self.bench.general[name], value)
        for register, value in zip(self.bench.vectors, vectors, strict=True):
            self.engine.reg_write(register, value)

    def _get(self) -> tuple[dict[str, int], tuple[int, ...]]:
        name, bits = self.bench.flags
        values = {n: self.engine.reg_read(r) & MASK for n, r in self.bench.general.items()}
        if name:
            values[name] &= bits
        return values, tuple(self.engine.reg_read(r) for r in self.bench.vectors)

    def _run(self, begin: int, until: int, steps: int) -> int:
        self._writes.clear()
        self._fault = ""
        error = 0
        try:
            self.engine.emu_start(begin, until, 0, steps)
        except unicorn.UcError as raised:
            error = raised.errno
        pc = int(self.engine.reg_read(self.bench.pc))
        # Where a jump leads to, nothing needs to be mapped: that is not the jump's fault.
        if error and not (error == unicorn.UC_ERR_FETCH_UNMAPPED and pc != begin):
            self._fault = self._fault or f"libunicorn error {error}"
        return pc - self.bench.trap_pc_offset if self._fault.startswith("exception") else pc

    # -- experiments --------------------------------------------------------------------------

    def test(self, code: bytes, states: int) -> tuple[str, Mismatch | None]:
        """One encoding: its verdict, and the first state where it fails.

        The verdict is ``copy``, ``rewrite``, ``emulate``, ``refuse: ...`` or ``not executed: ...``.
        """
        length, verdict = self.trap.classify(code, CODE)
        if isinstance(verdict, Refuse) or length != len(code):
            return summary(verdict if isinstance(verdict, Refuse)
                           else Refuse("is not one instruction")), None
        reason = self.bench.not_executed(code)
        if reason is not None:
            return f"not executed: {reason}", None
        for number in range(states):
            if len(self._pages) > MAX_PAGES // 2:
                self._new_engine()
            in_place = self._again(partial(self._in_place, code, number))
            displaced = self._again(partial(self._displaced, code, verdict, number))
            if in_place != displaced:
                return summary(verdict), Mismatch(
                    code, CODE, number, summary(verdict), in_place, displaced
                )
        return summary(verdict), None

    def _again(self, experiment: Callable[[], Outcome]) -> Outcome:
        """Unicorn sometimes does not see a page that was mapped while it asked for it
        (UC_ERR_MAP); the second time the page is there from the beginning."""
        outcome = experiment()
        if outcome.fault == NOT_SEEN:
            self._fault = ""
            outcome = experiment()
        return outcome

    def _fresh(self) -> None:
        if self._fault:  # Unicorn never finishes an exception: the next would be a double fault
            self._new_engine()
        for page in self._pages:
            if page not in (CODE, SLOT):
                self._fill(page)

    def _place(self, address: int, code: bytes) -> None:
        self.engine.mem_write(address, code)
        # Also what was translated behind the instruction: the run is to end there.
        self.engine.ctl_remove_cache(address, address + len(code))
        self.engine.ctl_remove_cache(CODE, CODE + 32)

    def _in_place(self, code: bytes, number: int) -> Outcome:
        self._fresh()
        self._place(CODE, code)
        values, vectors = self.state(number)
        self.bench.adapt(code, values)
        self._set(values, vectors)
        # A REP instruction takes a step for every repetition.
        after = CODE + len(code)
        pc = self._run(CODE, after, 1)
        steps = 0
        while pc == CODE and not self._fault and steps < MAX_STEPS:
            writes = list(self._writes)
            pc = self._run(CODE, after, 1)
            self._writes[:0] = writes
            steps += 1
            if not self._writes and steps > 1 and not _repeats(code):
                break
        registers, wide = self._get()
        return Outcome(registers, wide, tuple(self._writes), pc, self._fault)

    def _displaced(self, code: bytes, verdict: Verdict, number: int) -> Outcome:
        self._fresh()
        values, vectors = self.state(number)
        self.bench.adapt(code, values)
        after = CODE + len(code)
        if not isinstance(verdict, Copy | Rewrite):
            assert not isinstance(verdict, Refuse)
            state = _Registers(self, dict(values))
            pc = verdict.next_pc(state)
            name, bits = self.bench.flags
            if name:
                state.values[name] &= bits
            return Outcome(state.values, tuple(vectors), tuple(state.writes), pc, "")
        body, second = self.trap.trampoline(SLOT, code, verdict, after)
        self._place(SLOT, body)
        self._set(values, vectors)
        end = SLOT + second if self.trap.second_breakpoint else after
        pc = self._run(SLOT, end, MAX_STEPS)
        if pc == end:
            pc = after
        elif SLOT <= pc < SLOT + PAGE:
            pc = CODE + pc - SLOT  # a fault in the trampoline is one of the instruction
        registers, wide = self._get()
        return Outcome(registers, wide, tuple(self._writes), pc, self._fault)


def _repeats(code: bytes) -> bool:
    return code[:1] in (b"\xf3", b"\xf2")
