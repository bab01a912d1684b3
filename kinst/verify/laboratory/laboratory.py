"""Laboratory: executes an instruction in place and displaced, from the same random states.

Unicorn executes both on flat memory, without a kernel: in place at its address, and under a
breakpoint that the native dispatcher handles with a trampoline or an emulation.  An emulation is
also computed in Python from its verdict.  Registers, flags, memory, the next pc and faults must be
equal.  Pages are mapped when an instruction accesses them; their contents depend on the address
and the seed.

The host's CPU is another judge (``Judge``) for the instructions that it can execute.  It supports
instructions that Unicorn's CPU model does not.
"""

import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from emu.guests.registry import FREEBSD
from emu.host.errors import KinstError
from kinst.probes.dispatcher import new_dispatcher
from kinst.probes.kinds import TrapPath
from kinst.relocation.trampoline import SLOT
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Copy, Refuse, Rewrite, Verdict, summary
from kinst.verify.laboratory.architecture import Judge, LaboratoryArch
from kinst.verify.laboratory.emulated_state import EmulatedState, Unreachable
from kinst.verify.laboratory.finding import FAULTS, ONE_WAY, unproven
from kinst.verify.laboratory.flat_cpu import MAX_PAGES, FlatCpu
from kinst.verify.laboratory.memory_map import CODE, DATA, MASK, PAGE, SLOTS
from kinst.verify.laboratory.one_way import goes_one_way
from kinst.verify.laboratory.outcome import Mismatch, Outcome

MAX_STEPS = 4096
UNKNOWN = "the CPU model does not support it"
ON_HOST = "on the host"
EXECUTED = "executed"  # result on the host: the encoding was executed and compared
# Numbers of special states, for cases that random states rarely cover.  In HALVES, all registers
# have the same value; such states cover conditional instructions, and reveal verdicts that use too
# many bits of a register.  MIXED has aligned addresses and small numbers, for divisions and vector
# instructions.
MADE = 1_000_000
SAME = (0xFFFFFFFF_00000000, 0xFFFFFFFF, 0, 1)
HALVES = range(MADE, MADE + len(SAME))
MIXED = range(HALVES.stop, HALVES.stop + 16)


def mixed(number: int, registers: Sequence[str], address: Callable[[], int],
          small: Callable[[], int]) -> dict[str, int]:
    """Return registers that hold either an address or a small number, depending on the state.

    For any two registers, one of the first states has an address in the first and a small number
    in the second, and another state has them the other way around.
    """
    bits = (len(registers) - 1).bit_length()
    return {name: (address if (i >> number // 2 % bits ^ number) & 1 else small)()
            for i, name in enumerate(registers)}


class Told:
    """Evidence about an instruction, collected from its executions so far.

    :param verdict: verdict of kinst-emu; a conditional jump must go both ways if it can.
    :param stack: name of the stack pointer.
    :ivar ways: next pcs reached without a fault.
    :ivar unknown: whether the CPU does not support the instruction.
    """

    def __init__(self, verdict: Verdict, stack: str) -> None:
        self.ways: set[int] = set()
        self.unknown = False
        self._verdict, self._stack = verdict, stack

    def add(self, in_place: Outcome) -> None:
        """Record the next pc of an execution in place that did not fault."""
        if not in_place.fault:
            self.ways.add(in_place.pc)

    @property
    def lacks(self) -> str:
        """Reason why the states are insufficient to reveal a mistake, or an empty string."""
        return "" if self.enough else ONE_WAY if self.ways else FAULTS

    @property
    def enough(self) -> bool:
        """Whether the states are sufficient to reveal a mistake."""
        return len(self.ways) > 1 or (bool(self.ways) and self._one_way)

    @functools.cached_property
    def _one_way(self) -> bool:
        verdict = self._verdict
        return not isinstance(verdict, ConditionalJump) or verdict.target == verdict.otherwise or (
            goes_one_way(verdict.condition, self._stack))


class Laboratory:
    """Test bench that executes instructions of one architecture in place and displaced."""

    def __init__(self, facts: LaboratoryArch, trap: GuestTrap, seed: int, host: bool = False
                 ) -> None:
        self.facts, self.trap, self.seed = facts, trap, seed
        self.judge: Judge | None = None
        self.judged: Counter[str] = Counter()  # number of encodings by result on the host
        self._states: dict[int, tuple[dict[str, int], list[int]]] = {}
        self._new_beds()
        if host:
            self.judge = facts.judge(seed)
            if self.judge is None:
                raise KinstError(f"--judge host: the host's CPU cannot execute "
                                 f"{facts.arch.name} instructions")

    def _new_beds(self) -> None:
        self.plain, self.probed = FlatCpu(self.facts, self.seed), FlatCpu(self.facts, self.seed)
        self.dispatcher, self.templates = new_dispatcher(
            self.facts.arch, self.trap, FREEBSD[self.facts.arch.name].traps.trap_frame,
            self.probed.engine
        )
        self.dispatcher.choose(TrapPath.DIRECT)
        self.dispatcher.record("count")
        self.dispatcher.listen(0, 0, 0)

    # -- states -------------------------------------------------------------------------------

    def state(self, number: int) -> tuple[dict[str, int], list[int]]:
        """Return a random state by number: general registers and vector registers."""
        if number not in self._states:
            self._states[number] = self._make_state(number)
        values, vectors = self._states[number]
        return dict(values), list(vectors)

    def _make_state(self, number: int) -> tuple[dict[str, int], list[int]]:
        generator = random.Random(self.seed << 20 ^ number)
        kinds: tuple[Callable[[], int], ...] = (
            lambda: DATA + generator.randrange(0, PAGE, 8),
            lambda: generator.randrange(-8, 300) & MASK,
            lambda: generator.getrandbits(64),
            lambda: DATA + generator.randrange(0, PAGE),
            lambda: generator.getrandbits(32) << 32,  # the lower half is zero
            lambda: generator.choice((0, 1, MASK, 1 << 63, 1 << 31)),
        )
        if number in HALVES:
            kinds = (lambda: SAME[number - MADE],)
        values = {name: generator.choice(kinds)() for name in self.facts.general}
        if number in MIXED:
            values = mixed(number - MIXED.start, list(values),
                           lambda: DATA + generator.randrange(0, PAGE, 64),
                           lambda: generator.randrange(0, 256, 16))
        for name in ("rsp", "sp"):
            if name in values:
                values[name] = DATA + 0x800
        name, bits = self.facts.flags
        if name:
            values[name] = generator.getrandbits(64) & bits
        values |= self.facts.control
        return values, [generator.getrandbits(bits) for _register, bits in self.facts.vectors]

    # -- experiments --------------------------------------------------------------------------

    def test(self, code: bytes, states: int) -> tuple[str, Mismatch | None]:
        """Test one encoding; return its verdict and the first mismatch, if any.

        The verdict is ``copy``, ``rewrite``, ``emulate``, ``refuse: ...``, ``not executed: ...`` or
        ``unproven: ...``.
        """
        length, verdict = self.trap.instructions.classify(code, CODE)
        if isinstance(verdict, Refuse) or length != len(code):
            return summary(verdict if isinstance(verdict, Refuse)
                           else Refuse("is not exactly one instruction")), None
        word, mismatch = self._by_model(code, verdict, states)
        if self.judge is None or mismatch is not None:
            return word, mismatch
        how, mismatch = self._by_host(code, verdict, states)
        self.judged[how] += 1
        return word if mismatch is None and how != EXECUTED else summary(verdict), mismatch

    def _by_model(self, code: bytes, verdict: Verdict, states: int) -> tuple[str, Mismatch | None]:
        reason = self.facts.not_executed(code)
        if reason is not None:
            return f"not executed: {reason}", None
        word, told = summary(verdict), Told(verdict, self.facts.arch.sp)
        halves = HALVES if isinstance(verdict, ConditionalJump) else range(0)
        for number in chain(range(states), halves, MIXED):
            if number in MIXED and told.enough:
                break
            in_place = self._again(code, verdict, number)
            for how, outcome in self._others:
                if outcome != in_place:
                    return word, Mismatch(code, CODE, number, word, in_place, outcome, how)
            if in_place.fault in self.facts.unknown:
                return f"not executed: {UNKNOWN}", None
            told.add(in_place)
        return unproven(word, told.lacks) if told.lacks else word, None

    def _by_host(self, code: bytes, verdict: Verdict, states: int) -> tuple[str, Mismatch | None]:
        """Test an encoding on the host's CPU; return its result and the first mismatch, if any."""
        reason = self.facts.not_judged(code)
        if reason is not None:
            return f"not executed: {reason}", None
        assert self.judge is not None
        if self.judge.crowded:
            self.judge.close()
            self.judge = self.facts.judge(self.seed)
            assert self.judge is not None
        judge, executed = self.judge, False
        slot, body = self._trampoline(code)
        for number in chain(range(states), MIXED):
            if executed and number in MIXED:
                break
            values, vectors = self.state(number)
            self.facts.adapt(code, values)
            values = judge.prepare(values, vectors)
            repeats = self.facts.repeats(code)
            in_place = judge.run(values, code, 0, b"", repeats)
            if in_place.fault == judge.unknown:
                return "not executed: the host's CPU does not support it", None
            if isinstance(verdict, Copy | Rewrite):
                outcome = judge.run(values, code, slot, body, repeats)
                if outcome != in_place:  # retry: one of the runs may have lacked a page
                    in_place = judge.run(values, code, 0, b"", repeats)
                    outcome = judge.run(values, code, slot, body, repeats)
            elif in_place.fault:
                continue  # emulations do not model faults, which the kernel handles
            else:
                in_place, outcome = self._on_host(code, verdict, values, in_place)
            executed = executed or not in_place.fault
            if outcome != in_place:
                return EXECUTED, Mismatch(code, CODE, number, summary(verdict), in_place, outcome,
                                          ON_HOST)
        return EXECUTED if executed else "not executed: it faults in every state", None

    def _on_host(self, code: bytes, verdict: Verdict, values: dict[str, int],
                 in_place: Outcome) -> tuple[Outcome, Outcome]:
        """Emulate an instruction on the judge's memory for comparison with the outcome in place.

        :return: both outcomes, with only the registers that an emulation determines.
        """
        assert self.judge is not None
        assert not isinstance(verdict, Copy | Rewrite | Refuse)
        judge, bits = self.judge, self.judge.compared
        before = judge.refill(code)
        state = EmulatedState(judge, dict(values), [])
        try:
            pc = verdict.next_pc(state)
        except Unreachable:
            return in_place, replace(in_place, fault="unreachable memory")
        after = {name: state.values[name] & mask for name, mask in bits.items()}
        memory = judge.changed(before, len(code))
        return (replace(in_place, registers={
                    name: in_place.registers[name] & mask for name, mask in bits.items()}),
                Outcome(after, in_place.vectors, memory, pc, ""))

    def _trampoline(self, code: bytes) -> tuple[int, bytes]:
        """Return the address and bytes of a trampoline, or (0, b"") for an emulated encoding."""
        cpu, dispatcher = self.probed, self.dispatcher
        cpu.place(code)
        dispatcher.add(CODE, code, 0, 0)
        dispatcher.use_slots(SLOTS, SLOTS, PAGE, 2, False)
        dispatcher.enable()
        known = dispatcher.template(CODE)
        slot = known[1] if known is not None else 0
        body = cpu.read(slot, SLOT) if slot else b""
        dispatcher.disable()
        dispatcher.clear()
        return slot, body

    def close(self) -> None:
        """Close the judge, if there is one."""
        if self.judge is not None:
            self.judge.close()
            self.judge = None

    def _again(self, code: bytes, verdict: Verdict, number: int) -> Outcome:
        """Execute an encoding in place and displaced; also emulate it if the verdict says so."""
        def ways(_in_place: Outcome) -> list[tuple[str, Outcome]]:
            outcomes = []
            if not isinstance(verdict, Copy | Rewrite):
                outcomes.append(("by the verdict", self._emulated(code, verdict, number)))
            for page in list(self.plain.pages):
                self.probed.map(page)
            return [*outcomes, ("displaced", self._displaced(code, number))]

        return self._until_known(code, number, ways)

    def _until_known(self, code: bytes, number: int,
                     ways: Callable[[Outcome], list[tuple[str, Outcome]]]) -> Outcome:
        """Execute an encoding in place and by all alternatives; keep their outcomes in ``_others``.

        Executions are repeated until every page that any execution accesses is mapped.
        """
        while True:
            in_place = self._in_place(code, number)
            if self._appeared():
                continue
            self._others = ways(in_place)
            if not self._appeared():
                break
        outcomes = [in_place, *(outcome for _how, outcome in self._others)]
        if any(o.fault for o in outcomes) or len(self.plain.pages) > MAX_PAGES // 2:
            # Unicorn does not complete an exception: the next exception would be a double fault.
            pages = [] if len(self.plain.pages) > MAX_PAGES // 2 else list(self.plain.pages)
            self._new_beds()
            for page in pages:
                self.plain.map(page)
                self.probed.map(page)
        return in_place

    def _appeared(self) -> bool:
        """Map the missing pages that were accessed; return True if there were any and all fit.

        A page beyond the limit stays unmapped, so its access remains a fault.
        """
        wanted = self.plain.wanted | self.probed.wanted
        self.plain.wanted.clear()
        self.probed.wanted.clear()
        new = [page for page in sorted(wanted) if page not in self.plain.pages]
        return bool(new) and all([cpu.map(page) for page in new
                                  for cpu in (self.plain, self.probed)])

    def _steps(self, code: bytes) -> int:
        return MAX_STEPS if self.facts.repeats(code) else 1

    def _prepared(self, cpu: FlatCpu, code: bytes, number: int) -> tuple[dict[str, int], list[int]]:
        values, vectors = self.state(number)
        self.facts.adapt(code, values)
        cpu.refill()
        cpu.set(values, vectors)
        return values, vectors

    def _in_place(self, code: bytes, number: int) -> Outcome:
        cpu = self.plain
        cpu.place(code)
        self._prepared(cpu, code, number)
        cpu.keep(len(code))
        pc, fault = cpu.run(CODE + len(code), self._steps(code))
        registers, vectors = cpu.get()
        return Outcome(registers, vectors, cpu.memory(), pc, fault)

    def _displaced(self, code: bytes, number: int) -> Outcome:
        cpu, dispatcher = self.probed, self.dispatcher
        cpu.place(code)
        self._prepared(cpu, code, number)
        dispatcher.add(CODE, code, 0, 0)
        dispatcher.use_slots(SLOTS, SLOTS, PAGE, 2, False)
        dispatcher.enable()
        cpu.engine.remove_translations(SLOTS, SLOTS + PAGE)
        cpu.keep(len(code))
        pc, fault = cpu.run(CODE + len(code), 1)
        registers, vectors = cpu.get()
        memory = cpu.memory()
        dispatcher.disable()
        dispatcher.clear()
        return Outcome(registers, vectors, memory, pc, fault)

    def _emulated(self, code: bytes, verdict: Verdict, number: int) -> Outcome:
        assert not isinstance(verdict, Copy | Rewrite | Refuse)
        cpu = self.plain
        cpu.place(code)
        values, vectors = self._prepared(cpu, code, number)
        cpu.keep(len(code))
        state = EmulatedState(cpu, values, vectors)
        pc = verdict.next_pc(state)
        name, bits = self.facts.flags
        if name:
            state.values[name] &= bits
        return Outcome(state.values, tuple(state.vectors), cpu.memory(), pc, "")
