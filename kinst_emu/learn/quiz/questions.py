"""Quiz questions about a kernel's instructions, answered by executing them."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from emu.arch.arch import Arch
from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from kinst.relocation.rows import signed
from kinst.relocation.trap import NO_TRAMPOLINES, trap_of
from kinst.relocation.verdict import Copy, Refuse, Rewrite
from kinst_emu.explain.steps.explained import words_of
from kinst_emu.explain.steps.firing_steps import steps
from kinst_emu.explain.view.firing_picture import firing_layout
from kinst_emu.explain.view.firing_scenes import FiringScenes
from kinst_emu.explain.view.svg import svg
from kinst_emu.learn.quiz.experiment import Experiment, Experimenter

WORDS = ("copy", "rewrite", "emulate", "refuse")
LEVELS = {1: "the verdict", 2: "the pc in the trap frame", 3: "the contents of the trampoline",
          4: "where execution resumes", 5: "a register where execution resumes",
          6: "a word of the trap frame"}
TURN = (1, 2, 3, 4, 5)  # levels asked in turn when no level is chosen
ATTEMPTS = 200  # maximum number of instructions tried for one question
MASK = (1 << 64) - 1


Mistakes = dict[int | str, str]  # explanations of wrong answers, keyed by answer


@dataclass(frozen=True)
class Question:
    """Quiz question with its answer and explanations.

    :param text: lines of the question.
    :param answer: a word or a number.
    :param why: explanation of the answer.
    :param mistakes: explanations of common wrong answers, by answer.
    :param experiment: firing from which the answer was taken; None if none was needed.
    :param bits: width of a number.
    :param kind: which part of the trampoline a question of level 3 asks for.
    :param picture: SVG of the firing with the answer hidden; empty if the question has no picture.
    """

    level: int
    number: int
    text: tuple[str, ...]
    answer: int | str
    why: str
    mistakes: Mistakes = field(default_factory=dict)
    experiment: Experiment | None = field(default=None, repr=False)
    bits: int = 64
    kind: str = ""
    picture: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """Text of the answer; numbers are in hexadecimal."""
        return f"{self.answer:#x}" if isinstance(self.answer, int) else self.answer


def questions(machine: UnicornMachine, seed: int, level: int | None,
              turn: Sequence[int] = TURN) -> Iterator[Question]:
    """Yield an endless series of quiz questions.

    :param level: level of all questions; None: the levels of ``turn`` in turn.
    :raises KinstError: when the kernel has no instruction to ask about.
    """
    maker, number = _Maker(machine), 0
    while True:
        number += 1
        chosen = level or turn[(number - 1) % len(turn)]
        yield maker.question(chosen, number, random.Random(f"{seed} {chosen} {number}"))


class _Maker:
    def __init__(self, machine: UnicornMachine) -> None:
        self._arch: Arch = machine.arch
        self._layout = machine.guest.traps.trap_frame
        self._trap = trap_of(machine.guest, machine.arch.name)
        if self._trap.kernel_effects:
            raise KinstError(f"{machine.image.path}: no questions can be asked, because "
                             f"{NO_TRAMPOLINES}; choose another kernel")
        self._experimenter = Experimenter(machine)
        self._made: dict[int, Callable[[int, random.Random], Question | None]] = {
            1: self._verdict, 2: self._frame, 3: self._trampoline, 4: self._next, 5: self._register,
            6: self._word}
        self._words = words_of(machine.image)
        self._absent = set[str]()  # verdicts for which no instruction was found

    def question(self, level: int, number: int, generator: random.Random) -> Question:
        """Return a random question of the given level."""
        for _ in range(ATTEMPTS):
            made = self._made[level](number, generator)
            if made is not None:
                return made
        raise KinstError(f"--level {level}: no suitable instruction was found in {ATTEMPTS} "
                         "attempts: choose another level")

    def _there(self, words: Sequence[str]) -> list[str]:
        """Return the given verdicts, except those for which no instruction was found."""
        present = [word for word in words if word not in self._absent]
        if not present:
            raise KinstError("no instruction of the kernel has the verdict "
                             f"{' or '.join(words)}: choose another --level, or another kernel")
        return present

    def _experiment(self, generator: random.Random, *words: str) -> Experiment | None:
        """Return a random experiment whose instruction does not fault, or None on failure."""
        word = generator.choice(self._there(words))
        try:
            function, instruction = self._experimenter.instruction(generator, word)
        except KinstError:
            self._absent.add(word)
            return None
        experiment = self._experimenter.run(generator, function, instruction)
        if experiment is None or (isinstance(instruction.verdict, Copy | Rewrite) and (
                experiment.after[self._arch.pc] != instruction.address + len(instruction.code))):
            return None
        return experiment

    def _line(self, one: Experiment) -> str:
        i = one.instruction
        return (f"{one.function.name}:{i.offset}, at {i.address:#x}: {i.code.hex(' ')}   "
                f"{self._arch.disassemble(i.code, i.address)}")

    # -- question levels --------------------------------------------------------------------------

    def _verdict(self, number: int, generator: random.Random) -> Question | None:
        word = generator.choice(self._there(WORDS))
        if word == "refuse":
            try:
                function, instruction = self._experimenter.instruction(generator, word)
            except KinstError:
                self._absent.add(word)
                return None
            text, answer, experiment = "", word, None
            text = (f"{function.name}:{instruction.offset}, at {instruction.address:#x}: "
                    f"{instruction.code.hex(' ')}   "
                    f"{self._arch.disassemble(instruction.code, instruction.address)}")
            assert isinstance(instruction.verdict, Refuse)
            why = f"The instruction {instruction.verdict.reason}."
        else:
            experiment = self._experiment(generator, word)
            if experiment is None:
                return None
            text, code = self._line(experiment), experiment.instruction.code
            firing = experiment.firing
            if not firing.slot:
                answer, why = "emulate", (
                    "The instruction was never executed. It changes the control flow, or its "
                    "effect depends on its address, so the handler applied the effect to the "
                    "saved registers.")
            elif firing.trampoline.startswith(code):
                answer, why = "copy", ("The trampoline begins with the same bytes: nothing in them "
                                       "depends on their address.")
            else:
                answer, why = "rewrite", (
                    f"The trampoline begins with {firing.trampoline[: len(code)].hex(' ')}: the "
                    "instruction refers to an address relative to itself, so it needs other code "
                    "at another address.")
        mistakes: Mistakes = {
            "copy": "A copy at another address would behave differently, or must not be executed "
            "there.",
            "emulate": "An instruction is emulated if it changes the control flow, or cannot be "
            "executed at another address in any form.",
            "rewrite": "An instruction is rewritten if it refers to an address relative to itself, "
            "and other code can do the same from another address.",
            "refuse": "An instruction is refused if it cannot be probed at all, like an exclusive "
            "access, data in the code, or an invalid instruction."}
        mistakes.pop(answer)
        return Question(1, number, (
            text, "A kinst probe is placed on this instruction. How is the displaced instruction "
            "handled? (copy, rewrite, emulate, refuse)"), answer, why, mistakes, experiment)

    def _frame(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "copy", "emulate")
        if one is None:
            return None
        name = self._trap.frame.field(self._arch.pc)
        offset, size = self._layout.fields[name]
        answer = int.from_bytes(one.firing.frames[0].before[offset : offset + size], "little")
        address, length = one.instruction.address, len(one.instruction.code)
        mistakes: Mistakes = {
            address: "That is the address of the breakpoint. This CPU saves the address after it.",
            address + length: "That is the address of the next instruction. The CPU does not know "
                              "how long the displaced instruction was.",
            address + 1: "That would be right if the breakpoint were a one-byte trap instruction; "
                         "this CPU saves the address of the breakpoint itself.",
            one.firing.rows[1].address: "That is the address of the vector, to which the CPU "
                                        "jumps. The frame has the address from which it came."}
        mistakes.pop(answer, None)
        distance = answer - address
        why = ("The CPU saves the address of the breakpoint itself." if not distance else
               f"The breakpoint is {distance} byte long, and the CPU saves the address after it.")
        return Question(2, number, (
            self._line(one), f"A probe on this instruction fires. What is the value of {name} in "
            "the trap frame when the handler is called?"), answer, why, mistakes, one)

    def _trampoline(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "rewrite", "copy")
        if one is None:
            return None
        firing, verdict, i = one.firing, one.instruction.verdict, one.instruction
        mistakes: Mistakes
        bits, kind = 64, ""
        where = f"The trampoline is at {firing.slot:#x}."
        if isinstance(verdict, Rewrite) and verdict.displacement is not None:
            at, target = verdict.displacement
            bits, answer = 32, int.from_bytes(firing.trampoline[at : at + 4], "little")
            old = int.from_bytes(i.code[at : at + 4], "little")
            end = firing.slot + len(verdict.code)
            mistakes = {
                old: f"That is the displacement in the original instruction; at the trampoline's "
                     f"address it would refer to {end + signed(old, 32) & MASK:#x}.",
                target - firing.slot & 0xFFFF_FFFF: "A displacement is relative to the end of the "
                                                    "instruction, not to its start."}
            question = (f"{where} What is the 32-bit displacement in the rewritten instruction?")
            why = (f"The instruction refers to {target & MASK:#x}, and the rewritten instruction "
                   f"ends at {end:#x}: the difference is {answer:#x}.")
        elif isinstance(verdict, Rewrite) and verdict.data:
            known = firing.trampoline.find(verdict.data)
            if known < 0:
                return None
            answer = int.from_bytes(firing.trampoline[known : known + len(verdict.data)], "little")
            mistakes = {firing.slot: "That is the address of the trampoline."}
            question = (f"{where} The instruction is rewritten to load a constant that is stored "
                        f"after the trampoline's code. What is this {8 * len(verdict.data)}-bit "
                        "constant?")
            why = ("The instruction computes an address relative to itself; the constant is that "
                   f"address, {answer:#x}.")
        elif generator.getrandbits(1):
            kind, end = "end", firing.slot + len(i.code)
            answer = firing.second or end
            mistakes = {firing.slot: "That is the address of the displaced instruction.",
                        i.address + len(i.code): "That is the address where execution finally "
                                                 "resumes."}
            question = (f"{where} The instruction is copied there. What is the address of "
                        + ("the second breakpoint?" if firing.second else
                           "the jump back that follows the copy?"))
            why = f"The copied instruction ends at {end:#x}."
            if end != answer:
                why += f" A no-op follows as padding, so that the address is {answer:#x}."
        elif firing.second:
            kind, bits = "word", 32
            answer = int.from_bytes(firing.trampoline[:4], "little")
            mistakes = {int.from_bytes(firing.trampoline[:4], "big"): "That has the bytes in the "
                        "wrong order: the first byte is the least significant."}
            question = (f"{where} The instruction is copied there. What is the 32-bit word at "
                        f"{firing.slot:#x} then?")
            why = (f"The bytes of the word are {firing.trampoline[:4].hex(' ')}"
                   + ("" if len(i.code) == 4 else
                      ": the instruction, and a no-op as padding")
                   + ".")
        else:
            kind = "target"
            target_offset = len(i.code) + len(self._trap.jump)
            answer = int.from_bytes(firing.trampoline[target_offset : target_offset + 8], "little")
            mistakes = {i.address: "That is the address of the breakpoint, which would fire "
                        "forever.",
                        firing.slot + target_offset: "That is where the word itself is stored."}
            question = (f"{where} The instruction is copied there, followed by a jump and by the "
                        "address to which it jumps. What is this address?")
            why = (f"The instruction is {len(i.code)} bytes long: the next one is at {answer:#x}.")
        mistakes.pop(answer, None)
        return Question(3, number, (self._line(one), question), answer, why, mistakes, one, bits,
                        kind)

    def _next(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "emulate")
        if one is None or one.after[self._arch.pc] == one.firing.rows[1].address:
            return None
        if self._experimenter.reads_memory(one):  # The learner cannot see memory.
            return None
        answer = one.after[self._arch.pc]
        i = one.instruction
        behind = i.address + len(i.code)
        mistakes: Mistakes = {
            behind: "That is the next instruction: with these registers, this one jumps elsewhere.",
            i.address: "That is the address of the breakpoint, which would fire forever."}
        for target in _numbers(self._arch.disassemble(i.code, i.address)):
            mistakes.setdefault(target, "The instruction can jump to this address, but does not "
                                        "with these registers.")
        mistakes.pop(answer, None)
        return Question(4, number, (
            self._line(one), *self._registers(one), "A probe on this instruction fires with these "
            "registers. At which address does execution resume?"), answer,
            f"{self._led(one, answer, behind)} The instruction is emulated: the handler writes "
            f"{answer:#x} into the trap frame.", mistakes, one)

    def _led(self, one: Experiment, answer: int, behind: int) -> str:
        """Return a sentence that explains why execution resumes at an address."""
        i, arch = one.instruction, self._arch
        if answer == behind:
            return "With these registers, the next instruction follows."
        if answer in _numbers(arch.disassemble(i.code, i.address)):
            return "With these registers, the instruction jumps to the address in its operand."
        held = [name for name, value in one.registers.items() if value == answer]
        return f"The instruction jumps to the address in {' and '.join(held)}." if held else (
            "The instruction jumps to an address that it computes.")

    def _register(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "copy", "emulate")
        if one is None:
            return None
        kept = {self._arch.pc, self._trap.status.name}
        changed = [name for name, value in one.after.items()
                   if name not in kept and one.registers[name] != value]
        if not changed or self._experimenter.reads_memory(one):  # The learner cannot see memory.
            return None
        name = generator.choice(changed)
        before, answer = one.registers[name], one.after[name]
        return Question(5, number, (
            self._line(one), *self._registers(one), f"A probe on this instruction fires with these "
            f"registers. What is {name} where execution resumes?"), answer,
            f"The probe leaves no trace: {name} has the value that the instruction produces in "
            "place.", {before: f"That is {name} before the firing. The displaced "
                    "instruction still takes effect, and changes it."}, one)

    def _word(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "copy", "emulate")
        if one is None or one.firing.frames[0].address % 8:
            return None
        frame, before = one.firing.frames[0], one.firing.rows[0].registers
        fields = {name: offset for name, (offset, size) in self._layout.fields.items()
                  if size == 8 and before.get(name) and name != self._arch.pc
                  and name not in self._trap.frame.names.values()}
        if not fields:
            return None
        name = generator.choice(sorted(fields))
        address = frame.address + fields[name]
        answer = int.from_bytes(frame.before[fields[name] : fields[name] + 8], "little")
        now = frame.called.registers.get(name, answer)
        mistakes: Mistakes = {address: "That is the address of the word, not its value.",
                              now: f"That is {name} in the handler; the frame has its value at "
                                   "the breakpoint."}
        mistakes.pop(answer, None)
        scenes = FiringScenes(one.firing, one.table, self._words,
                              steps(one.firing, one.table, self._words))
        moment = next(n for n, found in enumerate(scenes.moments) if found.handles == 0)
        return Question(6, number, (
            self._line(one), *self._registers(one), "A probe on this instruction fires with these "
            f"registers. The handler is called with the trap frame at {frame.address:#x}. What is "
            f"the value of the word at {address:#x}?"), answer,
            f"The word is the frame's {name}, with the value at the breakpoint: {answer:#x}. "
            "Execution resumes with this value.", mistakes, one, picture=svg(
                scenes.scene(moment, "frame", hidden=address), firing_layout(scenes), styled=False))

    def _registers(self, one: Experiment) -> list[str]:
        """Return the registers of an experiment as lines of text."""
        shown = [f"{name} = {value:#x}" for name, value in one.registers.items()
                 if name != self._arch.pc]
        return [", ".join(shown[at : at + 4]) for at in range(0, len(shown), 4)]


def _numbers(text: str) -> list[int]:
    """Return the addresses in a disassembled instruction."""
    addresses = []
    for word in text.replace(",", " ").replace("#", " ").replace("[", " ").split():
        if word.startswith("0x"):
            try:
                addresses.append(int(word, 16))
            except ValueError:
                continue
    return addresses
