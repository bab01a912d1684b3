"""Laboratory for external relocators.

It compares their trampolines and emulations with the execution of the instruction in place.
"""

import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from emu.host.errors import KinstError
from kinst.relocation.trap import TRAPS, GuestTrap
from kinst.relocation.verdict import Copy, Refuse, Rewrite, summary
from kinst.verify.laboratory.architecture import LABORATORIES, LaboratoryArch
from kinst.verify.laboratory.emulated_state import EmulatedState, Unreachable
from kinst.verify.laboratory.finding import (
    NOT_TOLD,
    Finding,
    UnpreparedTask,
    finding,
    unproven,
)
from kinst.verify.laboratory.flat_cpu import FlatCpu
from kinst.verify.laboratory.laboratory import HALVES, MIXED, UNKNOWN, Laboratory, Told
from kinst.verify.laboratory.memory_map import CODE, MASK, SLOTS
from kinst.verify.laboratory.outcome import Mismatch, Outcome
from kinst.verify.laboratory.protocol import (
    Answer,
    Emulates,
    Refuses,
    Relocated,
    Relocator,
    identity,
)

STEPS = 64  # maximum number of instructions of a trampoline, not counting repetitions
BY_PROGRAM = "by the relocator"


class ForeignLaboratory(Laboratory):
    """Laboratory that tests an external relocator.

    :param relocator: program that is asked how to relocate each encoding.
    """

    def __init__(self, facts: LaboratoryArch, trap: GuestTrap, seed: int, relocator: Relocator
                 ) -> None:
        super().__init__(facts, trap, seed)
        self.relocator = relocator

    def judge_one(self, code: bytes, states: int) -> Finding:
        """Test how the relocator handles one encoding; stop at the first state that fails."""
        if self.facts.arch.instruction_length(code) != len(code):
            return Finding(code, "refuse: is not exactly one instruction")
        answer = self.relocator.ask(self.facts.arch.name, CODE, code, SLOTS)
        if isinstance(answer, Refuses):
            return Finding(code, f"refuse: {answer.reason}")
        word = "emulate" if isinstance(answer, Emulates) else (
            "copy" if answer.body.startswith(code) else "rewrite")
        reason = self.facts.not_executed(code)
        if reason is not None:
            return Finding(code, f"not executed: {reason}", verdict=word)
        ours = self.trap.instructions.classify(code, CODE)[1]
        differs = word == "copy" and not isinstance(ours, Copy | Refuse)
        halves = range(0) if isinstance(ours, Copy | Rewrite | Refuse) else HALVES
        told = Told(ours, self.facts.arch.sp)
        for number in chain(range(states), halves, MIXED):
            if number in MIXED and told.enough and not differs:
                break
            in_place = self._compared(code, answer, number)
            for how, outcome in self._others:
                if outcome != in_place:
                    return finding(word, Mismatch(code, CODE, number, word, in_place, outcome, how),
                                   code)
            if in_place.fault in self.facts.unknown:
                return Finding(code, f"not executed: {UNKNOWN}", verdict=word)
            told.add(in_place)
        if told.lacks or differs:
            why = told.lacks or NOT_TOLD + summary(ours)
            return Finding(code, unproven(word, why), verdict=word)
        return Finding(code, word)

    def _compared(self, code: bytes, answer: Answer, number: int) -> Outcome:
        return self._until_known(
            code, number, lambda in_place: [(BY_PROGRAM, self._other(code, answer, number,
                                                                     in_place))])

    def _other(self, code: bytes, answer: Answer, number: int, in_place: Outcome) -> Outcome:
        if isinstance(answer, Relocated):
            return self._in_trampoline(code, answer, number, in_place)
        if in_place.fault:
            return in_place  # emulations do not model faults
        return self._by_program(code, number)

    def _in_trampoline(self, code: bytes, answer: Relocated, number: int, in_place: Outcome
                       ) -> Outcome:
        cpu = self.probed
        cpu.place(code)
        self._prepared(cpu, code, number)
        cpu.put_slot(answer.body)
        cpu.keep(len(code))
        after, exits = CODE + len(code), {CODE + len(code), in_place.pc}
        if answer.back is not None:
            exits.add(SLOTS + answer.back)
        pc, fault = cpu.run_from(SLOTS, sorted(exits), STEPS + self._steps(code))
        if answer.back is not None and pc == SLOTS + answer.back and not fault:
            pc = after
        if fault and SLOTS <= pc < SLOTS + len(answer.body):
            pc = CODE  # a fault in the trampoline counts as a fault of the original instruction
        registers, vectors = cpu.get()
        return Outcome(registers, vectors, cpu.memory(), pc, fault)

    def _by_program(self, code: bytes, number: int) -> Outcome:
        cpu: FlatCpu = self.probed
        cpu.place(code)
        values, vectors = self._prepared(cpu, code, number)
        cpu.keep(len(code))
        state = EmulatedState(cpu, dict(values), vectors)

        def load(address: int, size: int) -> bytes:
            return state.load(address, size).to_bytes(size, "little")

        try:
            done = self.relocator.emulate(values, load)
            for address, data in done.stores:
                state.store(address, len(data), int.from_bytes(data, "little"))
        except Unreachable:
            self.relocator.again()  # the program still waits for the requested value
            return Outcome(values, tuple(vectors), {}, 0, "unreachable memory")
        values |= done.registers
        for index, value in done.vectors.items():
            state.set_vector(index, value)
        name, bits = self.facts.flags
        if name:
            values[name] &= bits
        return Outcome(values, tuple(vectors), cpu.memory(), done.pc & MASK, "")


def judged(program: str, arch: str, codes: Sequence[bytes], seed: int, states: int
           ) -> list[Finding]:
    """Test an external relocator; return a finding for each encoding.

    :param program: command line of the relocator.
    :raises KinstError: if the program cannot be run or violates the protocol.
    """
    with closing(Relocator(program)) as relocator, closing(
            ForeignLaboratory(LABORATORIES[arch](), TRAPS[arch], seed, relocator)) as laboratory:
        return [laboratory.judge_one(code, states) for code in codes]


@dataclass(frozen=True)
class RelocatorTask(UnpreparedTask):
    """Sweep task that tests an external relocator (see ``judged``).

    :param wanted: identity of the program on the machine that began the sweep.
    """

    program: str
    arch: str
    seed: int
    states: int
    wanted: str

    def results(self, prepared: None, items: Sequence[bytes]) -> list[Finding]:
        """Return a finding for each encoding.

        :raises KinstError: if this worker has different files of the program.
        """
        if identity(self.program) != self.wanted:
            raise KinstError(f"--relocator {self.program}: the program's files on the worker "
                             f"{socket.gethostname()} differ from the local ones; copy them there")
        return judged(self.program, self.arch, items, self.seed, self.states)
