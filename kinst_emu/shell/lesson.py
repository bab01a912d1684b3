"""Tutorial in a session: one task at a time, each checked by its effect.

A task is done when its effect is visible: a probe has fired, the machine is in a certain state, or
the right answer was given.  No answer is hard-coded for one kernel: the machine or the kernel's
tables provide it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kinst_emu.api.probes import Probes
from kinst_emu.api.program import Program
from kinst_emu.shell.session import Session

FUNCTION, WORD = "strlen", "hello"


@dataclass
class Pupil:
    """Session, variables and answers of the learner, which the tasks' checks examine.

    :param session: the session in which the learner works.
    :param names: the learner's namespace.
    :param digest: digest of the machine after the call without probes.
    :param result: value of the last line.
    :param answer: argument of ``answer()`` in the last line.
    """

    session: Session
    names: Mapping[str, Any]
    digest: str
    result: object = None
    answer: object = None

    def any_of(self, kind: type[Any]) -> list[Any]:
        """Return the values of a given type among the learner's variables."""
        return [value for name, value in self.names.items()
                if isinstance(value, kind) and not name.startswith("_")]


@dataclass(frozen=True)
class Task:
    """Task of the lesson.

    :param hint: code that does the task.
    :param done: checks whether the task is done.
    :param behind: explanation that is printed when the task is done.
    """

    title: str
    text: str
    hint: str
    done: Callable[[Pupil], bool]
    behind: str


def _first(progress: Pupil) -> Any:
    return progress.session.kernel.instructions(FUNCTION)[0]


def _breakpoint(progress: Pupil) -> bool:
    """Check whether the answer is the breakpoint that replaced the first instruction."""
    first = _first(progress)
    held = progress.session.machine.read(first.address, len(first.code))
    answer = progress.answer
    if held == first.code or answer is None:
        return False
    return answer in (held, held.hex(), held.hex(" "), int.from_bytes(held, "little"), held[0]
                     if len(held) == 1 else None)


def _fired(progress: Pupil) -> bool:
    return any(probes.count and any(f"{FUNCTION}:0" in name for name in probes.names)
               for probes in progress.any_of(Probes))


def _pc_saved(progress: Pupil) -> bool:
    """Check whether the answer is the pc that a probe on the first instruction saves."""
    from kinst_emu.explain.steps.explained import Asked, explain

    if progress.answer is None:
        return False
    one = explain(progress.session.kernel.image, Asked(f"{FUNCTION}:0", f'{FUNCTION}("{WORD}")'))
    pc = one.words.arch.pc
    offset, size = one.firing.layout[one.words.trap.frame.field(pc)]
    saved = one.firing.frames[0].before[offset : offset + size]
    return progress.answer == int.from_bytes(saved, "little")


def _same_state(progress: Pupil) -> bool:
    return (progress.session.machine.digest() == progress.digest
            and any(probes.count and probes.closed for probes in progress.any_of(Probes)))


TASKS = (
    Task("A call", f"The kernel is at its prompt. Call its function {FUNCTION} with a word of "
         "five letters, and look at the result.", f'call("{FUNCTION}", "{WORD}")',
         lambda progress: progress.result == len(WORD),
         "The function ran on the emulated CPU, from its first instruction to its return."),
    Task("Its instructions", f"Look at the instructions of {FUNCTION}. The column 'verdict' shows "
         "how each one is handled when a breakpoint displaces it. What is the verdict on the first "
         "instruction? Pass it to answer(), in quotes.", f"%disas {FUNCTION}, then answer(\"...\")",
         lambda progress: (isinstance(progress.answer, str)
                           and progress.answer == _first(progress).verdict.split()[0]),
         "Copy: the instruction works at any address. Rewrite: other code does the same at the new "
         "address. Emulate: the handler applies the effect to the saved registers."),
    Task("A probe", f"Put a probe on that instruction, assign it to p, and call {FUNCTION} again: "
         "the probe fires.",
         f'p = probe("kinst::{FUNCTION}:0"); call("{FUNCTION}", "{WORD}")', _fired,
         "The function returned the same value, although a breakpoint replaced its first "
         "instruction."),
    Task("The breakpoint", f"The probe is still enabled. Read the bytes at {FUNCTION} in memory, "
         "as many as its first instruction has, and pass them to answer().",
         f'answer(machine.read(kernel.symbol("{FUNCTION}"), N))', _breakpoint,
         "That is the breakpoint: INT3, BRK or EBREAK. Executing it raises an exception."),
    Task("The trap frame", "Close the probe (p.close()), and explain a firing. The kernel's vector "
         "saves the interrupted registers in a trap frame. Which address does the frame have for "
         "the program counter (rip, elr, sepc)? Pass it to answer(), as a number.",
         f"%explain {FUNCTION}:0 -c '{FUNCTION}(\"{WORD}\")', step 5; answer(0x...)",
         _pc_saved,
         "On amd64 it is the address after INT3; on arm64 and riscv64 it is the address of the "
         "breakpoint itself."),
    Task("A step, and back", "Execute three instructions, one at a time, look at what each one "
         "changes, and go back by one.", "step(); step(); step(); back()",
         lambda progress: progress.session.stepped >= 3 and progress.session.gone_back >= 1,
         "The machine can go back because every run from the same state is the same."),
    Task("D", "Count the entries of all functions while the kernel converts a string to a number: "
         "write a D program in a cell, for the call strtoul(\"42\", 0, 10).",
         "%%dtrace -c 'strtoul(\"42\", 0, 10)'   and below it:   fbt:::entry { @[probefunc] = "
         "count(); }",
         lambda progress: any("strtoul" in key for program in progress.any_of(Program)
                              for values in program.aggregations.values() for key in values),
         "The clause was compiled, and the handler executed it at each firing."),
    Task("Nothing is disturbed", "When the lesson began, it kept the machine's state in start, and "
         f"noted the digest after {FUNCTION}(\"{WORD}\"). Go back to that state, call the function "
         "with a probe on every instruction, close the probe, and reach the same state to the last "
         "bit.",
         f'machine.restore(start); p = probe("kinst::{FUNCTION}:"); call("{FUNCTION}", "{WORD}"); '
         "p.close()", _same_state,
         "That is the purpose of kinst: to observe any instruction without changing anything."),
)


class Lesson:
    """Lesson that takes the user of a session from task to task.

    :param names: the user's namespace, which has the session's kernel and machine.
    """

    def __init__(self, session: Session, names: dict[str, Any]) -> None:
        machine = session.machine
        state = machine.keep()
        machine.call(FUNCTION, WORD)
        self._progress = Pupil(session, names, machine.digest())
        machine.restore(state)
        self._at = 0
        names.update(start=state, answer=self.answer, task=self.task, hint=self.hint)

    @property
    def ended(self) -> bool:
        """Whether all tasks are done."""
        return self._at == len(TASKS)

    def task(self) -> None:
        """Print the current task."""
        if self.ended:
            print("The lesson is over. To test what you have learned: kinst quiz.")
            return
        task = TASKS[self._at]
        print(f"\n{self._at + 1} of {len(TASKS)}. {task.title}\n{task.text}\n"
              "(hint() shows how, task() prints this again)")

    def hint(self) -> None:
        """Print code that completes the current task."""
        if not self.ended:
            print(TASKS[self._at].hint)

    def answer(self, given: object) -> None:
        """Answer the question of the current task."""
        self._progress.answer = given

    def look(self, result: object) -> None:
        """Check whether the line that was just executed has completed the current task.

        :param result: value of the line.
        """
        if self.ended:
            return
        progress, task = self._progress, TASKS[self._at]
        progress.result = result
        asked, done = progress.answer is not None, task.done(progress)
        progress.answer = None
        if done:
            print(f"\nRight. {task.behind}")
            self._at += 1
            self.task()
        elif asked:
            print("That is not it.")
