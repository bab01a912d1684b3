"""Questions from fresh instructions of a kernel; the answers are what the machine did."""

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
LEVELS = {1: "the verdict", 2: "the trap frame's pc", 3: "what is in the trampoline",
          4: "where the run goes on", 5: "a register where the run goes on",
          6: "a word of the trap frame"}
TURN = (1, 2, 3, 4, 5)  # the levels, where none is chosen
ATTEMPTS = 200  # instructions that are tried for one question
MASK = (1 << 64) - 1


Mistakes = dict[int | str, str]  # another answer, and what who gives it has overlooked


@dataclass(frozen=True)
class Question:
    """:param text: what is asked, in lines.
    :param answer: a word, or a number.
    :param why: how the answer comes about.
    :param mistakes: other answers, and what has been overlooked by who gives them.
    :param experiment: which the answer is from; None: none was needed.
    :param bits: of a number.
    :param kind: what of a trampoline is asked for.
    :param picture: SVG, in which what is asked for is hidden; empty: there is none.
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
        """The answer as it is written."""
        return f"{self.answer:#x}" if isinstance(self.answer, int) else self.answer


def questions(machine: UnicornMachine, seed: int, level: int | None,
              turn: Sequence[int] = TURN) -> Iterator[Question]:
    """Without end; the levels in turn where none is given.

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
            raise KinstError(f"{machine.image.path}: {NO_TRAMPOLINES}: there is nothing to ask "
                             "about; give another kernel")
        self._experimenter = Experimenter(machine)
        self._made: dict[int, Callable[[int, random.Random], Question | None]] = {
            1: self._verdict, 2: self._frame, 3: self._trampoline, 4: self._next, 5: self._register,
            6: self._word}
        self._words = words_of(machine.image)
        self._absent = set[str]()  # verdicts that no instruction has

    def question(self, level: int, number: int, generator: random.Random) -> Question:
        for _ in range(ATTEMPTS):
            made = self._made[level](number, generator)
            if made is not None:
                return made
        raise KinstError(f"--level {level}: no instruction is found to ask about in {ATTEMPTS} "
                         "attempts: choose another level")

    def _there(self, words: Sequence[str]) -> list[str]:
        """Verdicts that the kernel's instructions have."""
        there = [word for word in words if word not in self._absent]
        if not there:
            raise KinstError(f"the kernel has no instruction whose verdict is {' or '.join(words)}:"
                             " choose another --level, or another kernel")
        return there

    def _experiment(self, generator: random.Random, *words: str) -> Experiment | None:
        """One whose instruction does not fault."""
        word = generator.choice(self._there(words))
        try:
            function, instruction = self._experimenter.instruction(generator, word)
        except KinstError:
            self._absent.add(word)
            return None
        found = self._experimenter.run(generator, function, instruction)
        if found is None or (isinstance(instruction.verdict, Copy | Rewrite) and (
                found.after[self._arch.pc] != instruction.address + len(instruction.code))):
            return None
        return found

    def _line(self, one: Experiment) -> str:
        i = one.instruction
        return (f"{one.function.name}:{i.offset}, at {i.address:#x}: {i.code.hex(' ')}   "
                f"{self._arch.disassemble(i.code, i.address)}")

    # -- the kinds --------------------------------------------------------------------------------

    def _verdict(self, number: int, generator: random.Random) -> Question | None:
        word = generator.choice(self._there(WORDS))
        if word == "refuse":
            try:
                function, instruction = self._experimenter.instruction(generator, word)
            except KinstError:
                self._absent.add(word)
                return None
            text, answer, one = "", word, None
            text = (f"{function.name}:{instruction.offset}, at {instruction.address:#x}: "
                    f"{instruction.code.hex(' ')}   "
                    f"{self._arch.disassemble(instruction.code, instruction.address)}")
            assert isinstance(instruction.verdict, Refuse)
            why = f"It {instruction.verdict.reason}."
        else:
            one = self._experiment(generator, word)
            if one is None:
                return None
            text, code = self._line(one), one.instruction.code
            firing = one.firing
            if not firing.slot:
                answer, why = "emulate", (
                    "It was not executed anywhere: what it does depends on its own place, or is to "
                    "change where the run goes on; the handler did that to the saved registers.")
            elif firing.trampoline.startswith(code):
                answer, why = "copy", ("The trampoline begins with its very bytes: nothing in them "
                                       "depends on where they are.")
            else:
                answer, why = "rewrite", (
                    f"The trampoline begins with {firing.trampoline[: len(code)].hex(' ')}: what "
                    "it refers to by distance is the same from there only with another distance.")
        mistakes: Mistakes = {
            "copy": "A copy elsewhere would not do the same, or must not be executed there.",
            "emulate": "What is emulated decides where the run goes on, or cannot be executed "
            "elsewhere in any form.",
            "rewrite": "What is rewritten refers to memory by its distance from itself, and can do "
            "so from elsewhere.",
            "refuse": "What is refused cannot be probed at all: exclusive accesses, data, what is "
            "no instruction."}
        mistakes.pop(answer)
        return Question(1, number, (
            text, "A kinst probe on it: what becomes of the instruction? (copy, rewrite, emulate, "
            "refuse)"), answer, why, mistakes, one)

    def _frame(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "copy", "emulate")
        if one is None:
            return None
        name = self._trap.frame.field(self._arch.pc)
        offset, size = self._layout.fields[name]
        answer = int.from_bytes(one.firing.frames[0].before[offset : offset + size], "little")
        address, length = one.instruction.address, len(one.instruction.code)
        mistakes: Mistakes = {
            address: "That is where the breakpoint is. What this CPU saves is after it.",
            address + length: "That is the next instruction. The CPU does not know how long the "
                              "displaced instruction was.",
            address + 1: "One byte after it is saved where a breakpoint is a trap of one byte; "
                         "here the CPU saves the breakpoint's own address.",
            one.firing.rows[1].address: "That is the vector, which the CPU goes to; the frame has "
                                        "what it comes from."}
        mistakes.pop(answer, None)
        behind = answer - address
        why = ("The CPU saves the address of the breakpoint itself." if not behind else
               f"The breakpoint has {behind} byte, and the CPU saves the address after it.")
        return Question(2, number, (
            self._line(one), f"A probe on it fires. What is {name} in the trap frame, when the "
            "handler is called?"), answer, why, mistakes, one)

    def _trampoline(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "rewrite", "copy")
        if one is None:
            return None
        firing, verdict, i = one.firing, one.instruction.verdict, one.instruction
        mistakes: Mistakes
        bits, kind = 64, ""
        where = f"Its trampoline is at {firing.slot:#x}."
        if isinstance(verdict, Rewrite) and verdict.displacement is not None:
            at, target = verdict.displacement
            bits, answer = 32, int.from_bytes(firing.trampoline[at : at + 4], "little")
            old = int.from_bytes(i.code[at : at + 4], "little")
            end = firing.slot + len(verdict.code)
            mistakes = {
                old: f"That is the displacement at its own place; from the trampoline it would "
                     f"lead to {end + signed(old, 32) & MASK:#x}.",
                target - firing.slot & 0xFFFF_FFFF: "Displacements count from the end of the "
                                                    "instruction, not from its start."}
            question = (f"{where} Which 32 bits are the displacement in the copy?")
            why = (f"It refers to {target & MASK:#x}; the copy ends at {end:#x}: the difference is "
                   f"{answer:#x}.")
        elif isinstance(verdict, Rewrite) and verdict.data:
            known = firing.trampoline.find(verdict.data)
            if known < 0:
                return None
            answer = int.from_bytes(firing.trampoline[known : known + len(verdict.data)], "little")
            mistakes = {firing.slot: "That is the trampoline's own address."}
            question = (f"{where} It is rewritten, to load a constant that comes after the "
                        f"trampoline's code: which, of {8 * len(verdict.data)} bits?")
            why = ("It computes an address from its own place; the constant is that address, "
                   f"{answer:#x}.")
        elif generator.getrandbits(1):
            kind, end = "end", firing.slot + len(i.code)
            answer = firing.second or end
            mistakes = {firing.slot: "That is where the displaced instruction itself is.",
                        i.address + len(i.code): "That is where the run goes on in the end."}
            question = (f"{where} It is copied there. What is the address of "
                        + ("the second breakpoint?" if firing.second else
                           "the jump back, after it?"))
            why = f"What is copied there ends at {end:#x}."
            if end != answer:
                why += f" An instruction that does nothing fills up, so that it is {answer:#x}."
        elif firing.second:
            kind, bits = "word", 32
            answer = int.from_bytes(firing.trampoline[:4], "little")
            mistakes = {int.from_bytes(firing.trampoline[:4], "big"): "Bytes are in the other "
                        "order: the first is the lowest."}
            question = (f"{where} It is copied there. Which word of 32 bits is at "
                        f"{firing.slot:#x} then?")
            why = (f"Its bytes are {firing.trampoline[:4].hex(' ')}"
                   + ("" if len(i.code) == 4 else
                      ": the instruction, and one that does nothing and fills up")
                   + ".")
        else:
            kind = "target"
            behind = len(i.code) + len(self._trap.jump)
            answer = int.from_bytes(firing.trampoline[behind : behind + 8], "little")
            mistakes = {i.address: "The breakpoint is there: it would fire for ever.",
                        firing.slot + behind: "That is where the word is."}
            question = (f"{where} It is copied there, with a jump after it, and after that the "
                        "address that it jumps to. Which?")
            why = (f"The instruction has {len(i.code)} bytes: the next one is at {answer:#x}.")
        mistakes.pop(answer, None)
        return Question(3, number, (self._line(one), question), answer, why, mistakes, one, bits,
                        kind)

    def _next(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "emulate")
        if one is None or one.after[self._arch.pc] == one.firing.rows[1].address:
            return None
        if self._experimenter.reads_memory(one):  # which is not shown
            return None
        answer = one.after[self._arch.pc]
        i = one.instruction
        behind = i.address + len(i.code)
        mistakes: Mistakes = {
            behind: "That is the next instruction: this one goes elsewhere, with these registers.",
            i.address: "That is where the breakpoint is: it would fire again and again."}
        for target in _numbers(self._arch.disassemble(i.code, i.address)):
            mistakes.setdefault(target, "That is where the instruction may lead; with these "
                                        "registers it does not.")
        mistakes.pop(answer, None)
        return Question(4, number, (
            self._line(one), *self._registers(one), "A probe on it fires, with these registers. At "
            "which address does the run go on?"), answer,
            f"{self._led(one, answer, behind)} It is emulated: the handler writes {answer:#x} "
            "into the trap frame.", mistakes, one)

    def _led(self, one: Experiment, answer: int, behind: int) -> str:
        """What leads to an address."""
        i, arch = one.instruction, self._arch
        if answer == behind:
            return "With these registers it goes on after itself."
        if answer in _numbers(arch.disassemble(i.code, i.address)):
            return "With these registers it goes where it says."
        held = [name for name, value in one.registers.items() if value == answer]
        return f"It goes to what is in {' and '.join(held)}." if held else (
            "It goes to an address that it computes.")

    def _register(self, number: int, generator: random.Random) -> Question | None:
        one = self._experiment(generator, "copy", "emulate")
        if one is None:
            return None
        kept = {self._arch.pc, self._trap.status.name}
        changed = [name for name, value in one.after.items()
                   if name not in kept and one.registers[name] != value]
        if not changed or self._experimenter.reads_memory(one):  # which is not shown
            return None
        name = generator.choice(changed)
        before, answer = one.registers[name], one.after[name]
        return Question(5, number, (
            self._line(one), *self._registers(one), f"A probe on it fires, with these registers. "
            f"What is {name} where the run goes on?"), answer,
            f"Nothing of the probe is left: {name} is as the instruction at its own place leaves "
            "it.", {before: f"That was {name} before: the displaced instruction is executed, too, "
                    "and changes it."}, one)

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
        at = frame.address + fields[name]
        answer = int.from_bytes(frame.before[fields[name] : fields[name] + 8], "little")
        now = frame.called.registers.get(name, answer)
        mistakes: Mistakes = {at: "That is where the word is, not what is in it.",
                              now: f"That is {name} now, in the handler; the frame has it as it "
                                   "was at the breakpoint."}
        mistakes.pop(answer, None)
        scenes = FiringScenes(one.firing, one.table, self._words,
                              steps(one.firing, one.table, self._words))
        moment = next(n for n, found in enumerate(scenes.moments) if found.handles == 0)
        return Question(6, number, (
            self._line(one), *self._registers(one), "A probe on it fires, with these registers. "
            f"The handler is called with the trap frame at {frame.address:#x}. What is in the word "
            f"at {at:#x}?"), answer,
            f"It is the frame's {name}: as it was at the breakpoint, {answer:#x}. The run goes on "
            "with it.", mistakes, one, picture=svg(
                scenes.scene(moment, "frame", hidden=at), firing_layout(scenes), styled=False))

    def _registers(self, one: Experiment) -> list[str]:
        """All of them, in lines."""
        shown = [f"{name} = {value:#x}" for name, value in one.registers.items()
                 if name != self._arch.pc]
        return [", ".join(shown[at : at + 4]) for at in range(0, len(shown), 4)]


def _numbers(text: str) -> list[int]:
    """The addresses in a disassembled instruction."""
    found = []
    for word in text.replace(",", " ").replace("#", " ").replace("[", " ").split():
        if word.startswith("0x"):
            try:
                found.append(int(word, 16))
            except ValueError:
                continue
    return found
