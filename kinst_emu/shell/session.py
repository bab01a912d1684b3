"""A kernel, a machine and a recording that one works with, and what is done with them.

What the names mean is looked up in the user's own namespace each time: who opens another machine
there, and calls it ``machine``, goes on with that one.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
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

MOST_KEPT = 20  # states that back() can return to
MOST_WRITES = 20
COMMAND = "$"


@dataclass(frozen=True)
class Moved:
    """Something that has moved the machine.

    :param ran: whether it has only executed: then any instruction in it can be gone back to.
    """

    before: State
    what: str
    ran: bool
    first: int
    last: int


class Session:
    """:param names: the user's namespace."""

    def __init__(self, names: MutableMapping[str, Any]) -> None:
        self._names = names
        self.stepped = self.gone_back = 0  # instructions, by step() and back()
        self._moves: list[Moved] = []
        self._moved_machine: Machine | None = None

    # -- what there is ----------------------------------------------------------------------------

    @property
    def kernel(self) -> Kernel:
        """:raises KinstError: when none is open."""
        found = self._names.get("kernel")
        if not isinstance(found, Kernel):
            raise KinstError("no kernel is open: kernel = kinst_emu.open(\"teaching/amd64\"), or "
                             "%kinst -k teaching/amd64")
        return found

    @property
    def machine(self) -> Machine:
        """:raises KinstError: when none is there."""
        found = self._names.get("machine")
        if not isinstance(found, Machine):
            raise KinstError("no kernel is booted: boot()")
        return found

    @property
    def recording(self) -> Recording | None:
        """The one whose machine is looked at."""
        found = self._names.get("recording")
        return (found if isinstance(found, Recording)
                and found.machine is self._names.get("machine") else None)

    def open_kernel(self, kernel: Kernel, memory: str) -> None:
        """Boot a kernel, and give the names."""
        self._names.update(kernel=kernel, machine=kernel.boot(memory), recording=None)

    def open_recording(self, recording: Recording) -> None:
        self._names.update(recording=recording, machine=recording.machine,
                           kernel=recording.machine.kernel)

    def verbs(self) -> dict[str, Any]:
        """What is given to the user, by name."""
        return {name: getattr(self, name) for name in (
            "boot", "call", "run", "command", "step", "back", "go", "here", "probe", "trace",
            "disas", "explain", "stack", "who_wrote", "layout", "variable", "struct")}

    # -- what is done -----------------------------------------------------------------------------

    def boot(self, memory: str = "512M") -> Machine:
        """A machine with the kernel at its prompt; it is ``machine`` from now on."""
        machine = self.kernel.boot(memory)
        self._names.update(machine=machine, recording=None)
        return machine

    def call(self, function: str, *arguments: object, unchecked: bool = False,
             limit: int = DEFAULT_LIMIT) -> Value:
        """Call a function: ``call("strlen", "hello")``, or as ``kinst call`` takes it:
        ``call('p = malloc(64, &M_TEMP, 2); free(p, &M_TEMP)')``."""
        machine = self.machine
        with self._moving(f"call({function!r})", ran=False):
            if "(" in function:
                return machine.evaluate(function, unchecked=unchecked, limit=limit)
            return machine.call(function, *arguments, unchecked=unchecked, limit=limit)

    def run(self, *places: str | int, console: str | tuple[str, ...] = (),
            instructions: int = DEFAULT_LIMIT) -> Standing:
        """Run until a place (``"strlen"``, ``"strlen+4"``, an address), a text on the console or a
        number of instructions is reached."""
        machine = self.machine
        self._refuse_recorded("run", "go(position)")
        with self._moving("run()", ran=True):
            before = machine.instructions
            stop = machine.run(*places, console=console, instructions=instructions)
        return self._here(f"{stop.reason.name.lower()} after {machine.instructions - before} "
                          "instructions")

    def command(self, line: str) -> str:
        """Give a command to our userland's shell; what it prints."""
        machine = self.machine
        with self._moving(f"command({line!r})", ran=False):
            ran = machine.command(line)
        text = ran.output.decode("utf-8", "backslashreplace")
        return text + ("" if not ran.status else f"\n[exit status {ran.status}]")

    def step(self, count: int = 1) -> Standing:
        """Execute instructions, one or more; what they have changed."""
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
        """Go back instructions.  A recording can go back anywhere.  A machine goes back through
        what step() and run() have executed; a call, or a command, it goes back behind as a whole.
        """
        _check(count)
        machine, before = self.machine, self._registers()
        if self.recording is not None:
            left = self.recording.position.instructions - self.recording.start.instructions
            if count > left:
                raise KinstError(f"only {left} instructions can be gone back")
            self.gone_back += count
            self.recording.back(count)
            return self._here("", before)
        moves = self._known_moves()
        if not moves:
            raise KinstError("there is nothing to go back to: step(), run() and call() remember "
                             "where they began; with machine.record(FILE) all of it is kept")
        last = moves[-1]
        if not last.ran:
            moves.pop()
            machine.restore(last.before)
            self.gone_back += count
            return self._here(f"back before {last.what}", before)
        target, number = machine.instructions - count, len(moves) - 1
        while number >= 0 and moves[number].ran and target < moves[number].first:
            number -= 1
        if number < 0:
            raise KinstError(f"only {machine.instructions - moves[0].first} instructions can be "
                             "gone back")
        if not moves[number].ran:
            raise KinstError(f"{count} instructions ago is in the middle of {moves[number].what}, "
                             "or before it: go back to behind it first")
        found = moves[number]
        del moves[number:]
        machine.restore(found.before)
        self.gone_back += count
        if target > found.first:
            machine.execute_again(target)
            moves.append(Moved(found.before, found.what, True, found.first, target))
        return self._here("", before)

    def go(self, position: str | int) -> Standing:
        """Send a recording to a position: ``"50%"``, ``"1.5s"``, ``"malloc#3"``, ``"panic"``, an
        instruction count."""
        if self.recording is None:
            raise KinstError("go: is for a recording; a machine: run(\"strlen\")")
        before = self._registers()
        self.recording.go(position)
        return self._here(str(self.recording.position), before)

    def here(self) -> Standing:
        """Where the machine stands."""
        return self._here("")

    def probe(self, wanted: str, fire: Fire | None = None, **options: Any) -> Probes:
        """Enable probes until they are closed: ``p = probe("fbt::strlen:entry"); call(...);
        p.records``; ``machine.probe`` says more."""
        return self.machine.probe(wanted, fire, **options)

    def trace(self, program: str, *arguments: object, **options: Any) -> Program:
        """Enable a D program until it is closed; one that is enabled is ended.  ``%%dtrace`` does
        it with a cell."""
        machine = self.machine
        if machine.program is not None:
            machine.program.close()
        return machine.trace(program, *arguments, **options)

    # -- what is asked ----------------------------------------------------------------------------

    def disas(self, function: str) -> Disassembly:
        """The instructions of a function, and what a probe would do with each."""
        found = self.kernel.instructions(function)
        at = [number for number, one in enumerate(found)
              if isinstance(self._names.get("machine"), Machine)
              and one.address == self.machine.pc]
        return Disassembly(function, found, at[0] if at else None)

    def explain(self, place: str, call: str, clause: str = "", hit: int = 1) -> Explanation:
        """One firing of the probe at ``FUNCTION:OFFSET``, step by step, on a machine of its own."""
        return Explanation(explain(self.kernel.image, Asked(place, call, hit, clause)))

    def stack(self) -> Lines:
        """How the machine came to where it is."""
        return Lines(self.machine.stack())

    def who_wrote(self, place: str | int, most: int = MOST_WRITES) -> list[Written]:
        """The last stores to a place before here, the last first; the recording stays where it is.
        """
        recording = self.recording
        if recording is None:
            raise KinstError("who_wrote: needs a recording: with machine.record(\"x.rec\"): ..., "
                             "then %kinst x.rec")
        here = recording.position
        found = [one for one, _number in zip(recording.who_wrote(place), range(most), strict=False)]
        recording.go(here)
        return found

    def layout(self, name: str) -> Lines:
        """A type's layout, a function's prototype, a variable's type, as C writes them."""
        image = self.kernel.image
        return Lines(lines(image, kernel_types(image, None), name))

    def variable(self, name: str) -> Value:
        """A variable of the kernel: ``variable("mp_ncpus")``, ``variable("proc0").p_comm``."""
        return self.machine.variable(name)

    def struct(self, tag: str, address: int) -> Value:
        """A structure at an address: ``struct("thread", address).td_name``."""
        return self.machine.struct(tag, address)

    # -- going back -------------------------------------------------------------------------------

    def _moving(self, what: str, ran: bool) -> "_Moving":
        return _Moving(self, what, ran)

    def begin(self) -> tuple[State, int] | None:
        """What back() needs; None: nothing is moved here but by the recording."""
        if self.recording is not None:
            return None
        self._known_moves()
        return self.machine.keep(), self.machine.instructions

    def moved(self, begun: tuple[State, int] | None, what: str, ran: bool) -> None:
        if begun is None or self.machine.instructions == begun[1]:  # it was refused
            return
        self._moves.append(Moved(begun[0], what, ran, begun[1], self.machine.instructions))
        del self._moves[:-MOST_KEPT]

    def _known_moves(self) -> list[Moved]:
        """Those that lead to where the machine stands: none, when something else has moved it."""
        machine = self.machine
        if (machine is not self._moved_machine
                or (self._moves and self._moves[-1].last != machine.instructions)):
            self._moves.clear()
        self._moved_machine = machine
        return self._moves

    # -- where it stands --------------------------------------------------------------------------

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
            found: list[Instruction] = machine.kernel.instructions(name)
        except KinstError:  # assembly without a size
            return None
        at = next((n for n, one in enumerate(found) if one.address == machine.pc), None)
        if at is None:
            return None
        first = max(0, at - AROUND)
        return Disassembly(name, found[first : at + AROUND + 1], at - first)

    def _refuse_recorded(self, what: str, instead: str) -> None:
        if self.recording is not None:
            raise KinstError(f"{what}: a recording is looked at: {instead}")


def _check(count: int) -> None:
    if count < 1:
        raise KinstError(f"{count} instructions: give 1 or more")


class _Moving:
    """What moves the machine is remembered, also when it fails on the way."""

    def __init__(self, session: Session, what: str, ran: bool) -> None:
        self._session, self._what, self._ran = session, what, ran

    def __enter__(self) -> None:
        self._begun = self._session.begin()

    def __exit__(self, *_error: object) -> None:
        self._session.moved(self._begun, self._what, self._ran)
