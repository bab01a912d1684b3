"""The tutorial, in a session: a task at a time, and whether it has been done is looked at.

A task is done by what is there afterwards: a probe that has fired, a state of the machine, an
answer that was given.  Nothing of it is hard-coded for one kernel: what is right is asked of the
machine, or of the kernel's tables.
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
    """What a task looks at.

    :param session: what the user works with, and ``names`` the user's namespace.
    :param result: what the last line gave; ``answer``: what was given to ``answer()``.
    :param digest: of the machine behind the call without probes.
    """

    session: Session
    names: Mapping[str, Any]
    digest: str
    result: object = None
    answer: object = None

    def any_of(self, kind: type[Any]) -> list[Any]:
        """The user's values of a type."""
        return [value for name, value in self.names.items()
                if isinstance(value, kind) and not name.startswith("_")]


@dataclass(frozen=True)
class Task:
    """:param done: whether it has been.
    :param hint: what would do it.
    :param behind: what is said when it is done.
    """

    title: str
    text: str
    hint: str
    done: Callable[[Pupil], bool]
    behind: str


def _first(progress: Pupil) -> Any:
    return progress.session.kernel.instructions(FUNCTION)[0]


def _breakpoint(progress: Pupil) -> bool:
    """The byte, or bytes, that a probe has written over the first instruction."""
    first = _first(progress)
    held = progress.session.machine.read(first.address, len(first.code))
    given = progress.answer
    if held == first.code or given is None:
        return False
    return given in (held, held.hex(), held.hex(" "), int.from_bytes(held, "little"), held[0]
                     if len(held) == 1 else None)


def _fired(progress: Pupil) -> bool:
    return any(probes.count and any(f"{FUNCTION}:0" in name for name in probes.names)
               for probes in progress.any_of(Probes))


def _pc_saved(progress: Pupil) -> bool:
    """The interrupted pc, as the trap frame of a probe on the first instruction has it."""
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
    Task("A call", f"The kernel stands at its prompt. Call its function {FUNCTION} with a word of "
         "five letters, and see what it gives.", f'call("{FUNCTION}", "{WORD}")',
         lambda progress: progress.result == len(WORD),
         "The function ran on the emulated CPU, from its first instruction to its return."),
    Task("Its instructions", f"Look at the instructions of {FUNCTION}. The column 'verdict' says "
         "what becomes of each when a breakpoint displaces it. Which verdict has the first one? "
         "Give it to answer(), in quotes.", f"%disas {FUNCTION}, then answer(\"...\")",
         lambda progress: (isinstance(progress.answer, str)
                           and progress.answer == _first(progress).verdict.split()[0]),
         "Copy: it does the same anywhere. Rewrite: other code for it there. Emulate: what it does "
         "is done to the saved registers."),
    Task("A probe", f"Put a probe on that instruction, keep it in p, and call {FUNCTION} again: "
         "the probe fires.",
         f'p = probe("kinst::{FUNCTION}:0"); call("{FUNCTION}", "{WORD}")', _fired,
         "The function gave the same, though its first instruction was not there."),
    Task("The breakpoint", f"The probe is still enabled. Read the bytes at {FUNCTION} in memory, "
         "as many as its first instruction has, and give them to answer().",
         f'answer(machine.read(kernel.symbol("{FUNCTION}"), N))', _breakpoint,
         "That is the breakpoint: INT3, BRK or EBREAK. Executing it is an exception."),
    Task("The trap frame", "Close the probe (p.close()), and have a firing explained. The kernel's "
         "vector saves the interrupted registers in a trap frame. Which address does it have for "
         "the program counter (rip, elr, sepc)? Give it to answer(), as a number.",
         f"%explain {FUNCTION}:0 -c '{FUNCTION}(\"{WORD}\")', step 5; answer(0x...)",
         _pc_saved,
         "On amd64 it is the address behind INT3; the other two save the breakpoint's own."),
    Task("A step, and back", "Execute three instructions, one at a time, see what each changes, "
         "and go back one.", "step(); step(); step(); back()",
         lambda progress: progress.session.stepped >= 3 and progress.session.gone_back >= 1,
         "Time goes both ways here: the machine is a function of its inputs."),
    Task("D", "Count the entries of all functions while the kernel turns a text into a number: a D "
         "program in a cell, for the call strtoul(\"42\", 0, 10).",
         "%%dtrace -c 'strtoul(\"42\", 0, 10)'   and below it:   fbt:::entry { @[probefunc] = "
         "count(); }",
         lambda progress: any("strtoul" in key for program in progress.any_of(Program)
                              for values in program.aggregations.values() for key in values),
         "The clause was compiled, and ran at each firing, in the handler."),
    Task("Nothing is disturbed", "The machine was kept in start when the lesson began, and its "
         f"digest behind {FUNCTION}(\"{WORD}\") is known. Go back there, call it with a probe on "
         "every instruction, close the probe, and be in the same state to the last bit.",
         f'machine.restore(start); p = probe("kinst::{FUNCTION}:"); call("{FUNCTION}", "{WORD}"); '
         "p.close()", _same_state,
         "That is what kinst is for: to look at any instruction, and to have changed nothing."),
)


class Lesson:
    """:param names: the user's namespace, in which the session has its kernel and machine."""

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
        return self._at == len(TASKS)

    def task(self) -> None:
        """Say the present task again."""
        if self.ended:
            print("The lesson is over. kinst quiz asks about what was in it.")
            return
        task = TASKS[self._at]
        print(f"\n{self._at + 1} of {len(TASKS)}. {task.title}\n{task.text}\n"
              "(hint() says how, task() this again)")

    def hint(self) -> None:
        """Say what would do it."""
        if not self.ended:
            print(TASKS[self._at].hint)

    def answer(self, given: object) -> None:
        """What is asked for."""
        self._progress.answer = given

    def look(self, result: object) -> None:
        """Something was executed: whether the task is done now."""
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
