"""Interactive session: a kernel, a machine or a recording, and the operations on them.

Every operation looks up ``kernel``, ``machine`` and ``recording`` in the user's namespace: a user
who assigns another machine to ``machine`` works with that machine from then on.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtrace.debug.kernel_types import kernel_types
from dwarf.values import Value
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.kernel_file import Instruction
from kinst_emu.api.machine import Machine, State
from kinst_emu.api.probes import Fire, Probes
from kinst_emu.api.program import Program
from kinst_emu.api.recording import Recording, Written
from kinst_emu.cli.type_lines import lines
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.shell.shown import AROUND, Disassembly, Explanation, Lines, Standing

MOST_KEPT = 20  # maximum number of states that back() can return to
MOST_WRITES = 20  # maximum number of stores that who_wrote() returns
COMMAND = "$"


@dataclass(frozen=True)
class Moved:
    """Operation that moved the machine, remembered for ``back``.

    :param before: state before the operation.
    :param what: description of the operation.
    :param ran: whether it only executed instructions, so that ``back`` can go to any of them.
    :param first: instruction count before the operation.
    :param last: instruction count after the operation.
    """

    before: State
    what: str
    ran: bool
    first: int
    last: int


class Session:
    """Functions of a session, which use the kernel, machine and recording in the user's namespace.

    :param names: the user's namespace.
    """

    def __init__(self, names: MutableMapping[str, Any]) -> None:
        self._names = names
        # numbers of instructions that step() has executed and that back() has undone
        self.stepped = self.gone_back = 0
        self._moves: list[Moved] = []
        self._moved_machine: Machine | None = None
        # directories with the kernel's source files
        self.sources: Sequence[Path] = ()

    # -- the user's names -------------------------------------------------------------------------

    @property
    def kernel(self) -> Kernel:
        """Kernel that is open in the session.

        :raises KinstError: when no kernel is open.
        """
        found = self._names.get("kernel")
        if not isinstance(found, Kernel):
            raise KinstError("no kernel is open: use kernel = kinst_emu.open(\"teaching/amd64\"), "
                             "or %kinst -k teaching/amd64")
        return found

    @property
    def machine(self) -> Machine:
        """Machine that the operations work on.

        :raises KinstError: when no machine is booted.
        """
        found = self._names.get("machine")
        if not isinstance(found, Machine):
            raise KinstError("no kernel is booted: use boot()")
        return found

    @property
    def recording(self) -> Recording | None:
        """Recording to which the machine belongs, or None."""
        found = self._names.get("recording")
        return (found if isinstance(found, Recording)
                and found.machine is self._names.get("machine") else None)

    def open_kernel(self, kernel: Kernel, memory: str) -> None:
        """Boot a kernel, and store the kernel and its machine in the user's namespace."""
        self._names.update(kernel=kernel, machine=kernel.boot(memory), recording=None)

    def open_recording(self, recording: Recording) -> None:
        """Store a recording, its machine and its kernel in the user's namespace."""
        self._names.update(recording=recording, machine=recording.machine,
                           kernel=recording.machine.kernel)

    def verbs(self) -> dict[str, Any]:
        """Return the functions for the user's namespace, keyed by name."""
        return {name: getattr(self, name) for name in (
            "boot", "call", "run", "command", "step", "back", "go", "here", "probe", "trace",
            "disas", "explain", "stack", "who_wrote", "layout", "variable", "struct")}

    # -- operations -------------------------------------------------------------------------------

    def boot(self, memory: str = "512M") -> Machine:
        """Boot the kernel to its prompt, and assign the machine to ``machine``."""
        machine = self.kernel.boot(memory)
        self._names.update(machine=machine, recording=None)
        return machine

    def call(self, function: str, *arguments: object, unchecked: bool = False,
             limit: int = DEFAULT_LIMIT) -> Value:
        """Call a kernel function: ``call("strlen", "hello")``.

        It also takes calls in the syntax of ``kinst call``:
        ``call('p = malloc(64, &M_TEMP, 2); free(p, &M_TEMP)')``.
        """
        machine = self.machine
        with self._moving(f"call({function!r})", ran=False):
            if "(" in function:
                return machine.evaluate(function, unchecked=unchecked, limit=limit)
            return machine.call(function, *arguments, unchecked=unchecked, limit=limit)

    def run(self, *places: str | int, console: str | tuple[str, ...] = (),
            instructions: int = DEFAULT_LIMIT) -> Standing:
        """Run the machine until one of the given conditions stops it.

        :param places: places to stop at: ``"strlen"``, ``"strlen+4"``, or an address.
        :param console: console text to stop at, or several.
        :param instructions: maximum number of instructions to execute.
        """
        machine = self.machine
        self._refuse_recorded("run", "go(position)")
        with self._moving("run()", ran=True):
            before = machine.instructions
            stop = machine.run(*places, console=console, instructions=instructions)
        return self._here(f"{stop.reason.name.lower()} after {machine.instructions - before} "
                          "instructions")

    def command(self, line: str) -> str:
        """Run a command in the shell of the kinst-emu userland, and return the command's output."""
        machine = self.machine
        with self._moving(f"command({line!r})", ran=False):
            ran = machine.command(line)
        text = ran.output.decode("utf-8", "backslashreplace")
        return text + ("" if not ran.status else f"\n[exit status {ran.status}]")

    def step(self, count: int = 1) -> Standing:
        """Execute instructions, and return the new position and the changed registers."""
        _check(count)
        machine, before = self.machine, self._registers()
        if self.recording is not None:
            self.recording.step(count)
        else:
            with self._moving("step()", ran=True):
                machine.step(count)
        self.stepped += count
        return self._here("", before)

    def back(self, count: int = 1) -> Standing:
        """Go back by a number of instructions.

        A recording can go back to any position.  A machine can go back to any instruction that
        step() or run() has executed; a call or a command is undone as a whole.
        """
        _check(count)
        machine, before = self.machine, self._registers()
        if self.recording is not None:
            left = self.recording.position.instructions - self.recording.start.instructions
            if count > left:
                raise KinstError(f"cannot go back by {count} instructions: the recording starts "
                                 f"{left} instructions before the current position")
            self.gone_back += count
            self.recording.back(count)
            return self._here("", before)
        moves = self._known_moves()
        if not moves:
            raise KinstError("nothing to go back to: only step(), run(), call() and command() can "
                             "be undone; to go back anywhere, use machine.record(FILE)")
        last = moves[-1]
        if not last.ran:
            moves.pop()
            machine.restore(last.before)
            self.gone_back += count
            return self._here(f"back before {last.what}", before)
        target, index = machine.instructions - count, len(moves) - 1
        while index >= 0 and moves[index].ran and target < moves[index].first:
            index -= 1
        if index < 0:
            raise KinstError(f"cannot go back by {count} instructions: only the last "
                             f"{machine.instructions - moves[0].first} can be undone")
        if not moves[index].ran:
            raise KinstError(f"cannot go back by {count} instructions: {moves[index].what} can "
                             "only be undone as a whole; go back to its end first, then use back()")
        move = moves[index]
        del moves[index:]
        machine.restore(move.before)
        self.gone_back += count
        if target > move.first:
            machine.execute_again(target)
            moves.append(Moved(move.before, move.what, True, move.first, target))
        return self._here("", before)

    def go(self, position: str | int) -> Standing:
        """Move a recording to a position, forward or backward.

        :param position: ``"50%"``, ``"1.5s"``, ``"malloc#3"``, ``"panic"``, or an instruction
            count.
        """
        if self.recording is None:
            raise KinstError("go() needs a recording; to move a machine, use run(\"strlen\")")
        before = self._registers()
        self.recording.go(position)
        return self._here(str(self.recording.position), before)

    def here(self) -> Standing:
        """Return the current position of the machine."""
        return self._here("")

    def probe(self, wanted: str, fire: Fire | None = None, **options: Any) -> Probes:
        """Enable probes until they are closed, as ``machine.probe`` does.

        For example: ``p = probe("fbt::strlen:entry"); call("strlen", "hello"); p.records``.
        """
        return self.machine.probe(wanted, fire, **options)

    def trace(self, program: str, *arguments: object, **options: Any) -> Program:
        """Close the previous D program, then enable a new one until it is closed.

        ``%%dtrace`` does the same with the program in a cell.
        """
        machine = self.machine
        if machine.program is not None:
            machine.program.close()
        return machine.trace(program, *arguments, **options)

    # -- queries ----------------------------------------------------------------------------------

    def disas(self, function: str) -> Disassembly:
        """Return the instructions of a function, with the verdict on each."""
        instructions = self.kernel.instructions(function)
        indexes = [number for number, instruction in enumerate(instructions)
              if isinstance(self._names.get("machine"), Machine)
              and instruction.address == self.machine.pc]
        return Disassembly(function, instructions, indexes[0] if indexes else None)

    def explain(self, place: str, call: str, clause: str = "", hit: int = 1) -> Explanation:
        """Explain one firing of the probe at ``FUNCTION:OFFSET``, step by step.

        The firing happens on a separate machine.
        """
        return Explanation(explain(self.kernel.image, Asked(place, call, hit, clause)))

    def stack(self) -> Lines:
        """Return the call stack of the machine."""
        return Lines(self.machine.stack())

    def who_wrote(self, place: str | int, most: int = MOST_WRITES) -> list[Written]:
        """Return the last stores to a memory location before the current position, latest first.

        The position of the recording does not change.
        """
        recording = self.recording
        if recording is None:
            raise KinstError("who_wrote() needs a recording: make one with "
                             "machine.record(\"x.rec\"), and open it with %kinst x.rec")
        here = recording.position
        found = [one for one, _number in zip(recording.who_wrote(place), range(most), strict=False)]
        recording.go(here)
        return found

    def layout(self, name: str) -> Lines:
        """Return a type's layout, a function's prototype or a variable's type, in C syntax."""
        image = self.kernel.image
        return Lines(lines(image, kernel_types(image, None), name))

    def variable(self, name: str) -> Value:
        """Return a kernel variable: ``variable("mp_ncpus")``, ``variable("proc0").p_comm``."""
        return self.machine.variable(name)

    def struct(self, tag: str, address: int) -> Value:
        """Return the structure at an address: ``struct("thread", address).td_name``."""
        return self.machine.struct(tag, address)

    # -- going back -------------------------------------------------------------------------------

    def _moving(self, what: str, ran: bool) -> "Moving":
        return Moving(self, what, ran)

    def begin(self) -> tuple[State, int] | None:
        """Return the current state and instruction count for ``back``, or None on a recording."""
        if self.recording is not None:
            return None
        self._known_moves()
        return self.machine.keep(), self.machine.instructions

    def moved(self, begun: tuple[State, int] | None, what: str, ran: bool) -> None:
        """Remember an operation for ``back``, unless it executed no instructions.

        :param begun: what ``begin`` returned before the operation.
        """
        if begun is None or self.machine.instructions == begun[1]:
            return
        self._moves.append(Moved(begun[0], what, ran, begun[1], self.machine.instructions))
        del self._moves[:-MOST_KEPT]

    def _known_moves(self) -> list[Moved]:
        """Return the operations that led to the current state, or [] if the record is outdated."""
        machine = self.machine
        if (machine is not self._moved_machine
                or (self._moves and self._moves[-1].last != machine.instructions)):
            self._moves.clear()
        self._moved_machine = machine
        return self._moves

    # -- current position -------------------------------------------------------------------------

    def _registers(self) -> dict[str, int]:
        return dict(self.machine.registers)

    def _here(self, said: str, before: dict[str, int] | None = None) -> Standing:
        machine, now = self.machine, self._registers()
        changed = {name: (value, now[name]) for name, value in (before or now).items()
                   if now.get(name, value) != value}
        return Standing(machine.where(machine.pc), said, self._around(machine), changed)

    def _around(self, machine: Machine) -> Disassembly | None:
        name = machine.where(machine.pc).partition("+")[0]
        try:
            instructions: list[Instruction] = machine.kernel.instructions(name)
        except KinstError:  # an assembly routine, whose symbol has no size
            return None
        index = next((n for n, one in enumerate(instructions) if one.address == machine.pc), None)
        if index is None:
            return None
        first = max(0, index - AROUND)
        return Disassembly(name, instructions[first : index + AROUND + 1], index - first)

    def _refuse_recorded(self, what: str, instead: str) -> None:
        if self.recording is not None:
            raise KinstError(f"{what}() does not work on a recording: use {instead}")


def _check(count: int) -> None:
    if count < 1:
        raise KinstError(f"{count} instructions: must be 1 or more")


class Moving:
    """Context manager that remembers an operation for ``back``, even if it fails.

    :param what: description of the operation.
    :param ran: whether it only executes instructions, so that ``back`` can go to any of them.
    """

    def __init__(self, session: Session, what: str, ran: bool) -> None:
        self._session, self._what, self._ran = session, what, ran

    def __enter__(self) -> None:
        self._begun = self._session.begin()

    def __exit__(self, *_error: object) -> None:
        self._session.moved(self._begun, self._what, self._ran)
