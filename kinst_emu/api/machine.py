"""Machines as Python programs use them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtrace.calls.calls import Evaluation, check, parse
from dtrace.calls.prototypes import check_data, check_number, check_shape, registers
from dtrace.debug.symbols import find_function
from dtrace.descriptions.code_places import code_place
from dwarf.values import CArray, CStruct, Value, addressof, from_bits
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT, Caller
from emu.machine.machine import Stop, StopReason, Until
from emu.qemu.machine import QemuMachine
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot
from images.boots import LIMIT
from images.shell import Ran, run_command
from kinst.probes.breakpoints import GUEST, PATHS, Breakpoints
from kinst.probes.breakpoints import Path as TrapPath
from kinst.probes.probe_table import Probe
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst_emu.api.inspected import Inspected
from kinst_emu.api.kernel_file import KernelFile
from kinst_emu.api.probes import Fire, Probes
from kinst_emu.api.program import Program
from kinst_emu.api.turn import in_turn

if TYPE_CHECKING:
    from kinst_emu.explore.explorer import Explored

MOST = 1 << 62  # instructions, or nanoseconds, of a run


@dataclass(frozen=True)
class State:
    """A state of a machine, kept in memory.

    :param of: the kernel's identity and the bytes of RAM: it is for such machines alone.
    :param placed: what ``place`` had put on the stack.
    """

    snapshot: Snapshot
    of: tuple[str, int]
    placed: tuple[int, int, int] | None


class Machine(Inspected):
    """A computer that runs a kernel, and stands still between what it is asked to do.

    :param emulated: the machine below, ours or QEMU's.
    """

    def __init__(self, kernel: KernelFile, emulated: UnicornMachine | QemuMachine) -> None:
        super().__init__(kernel, emulated)
        self._caller: Caller | None = None
        self._probes: list[Probes] = []
        self._breakpoints: Breakpoints | SeamBreakpoints | None = None
        self._path: TrapPath = GUEST
        self._program: Program | None = None

    # -- running ----------------------------------------------------------------------------------

    def explore(self, *runs: str, **asked: Any) -> "Explored":
        """Try the orders of calls, on another machine with this kernel that is booted for it: see
        ``kinst_emu.explore.from_python.explore``, which takes the same."""
        from kinst_emu.explore.from_python import explore

        return explore(self.emulated.image, *runs, **asked)

    @in_turn
    def call(self, function: str, *arguments: object, unchecked: bool = False,
             limit: int = DEFAULT_LIMIT) -> Value:
        """Call a function of the kernel.

        :param arguments: numbers, pointers, None, structures and arrays (their address); strings
            (a NUL is added) and bytes, which are placed in the guest's memory for the call.
        :param unchecked: pass the arguments whatever the function's type is, and give the plain
            register.
        :param limit: instructions after which the call is given up.
        :return: the result by the function's type; a number where that is not known.
        :raises CallError: when it panics, faults or does not return.
        :raises KinstError: when there is no such function, or it takes other arguments.
        """
        symbol = find_function(self.emulated.image, function)
        caller = Caller(self.emulated, limit)
        given = [addressof(a) if isinstance(a, CStruct | CArray) else 0 if a is None else a
                 for a in arguments]
        procedure = None
        if not unchecked:
            procedure = self.kernel.prototypes.of(symbol.name, symbol.address)
        if procedure is not None:
            check_shape(function, procedure, len(given))
            for number, argument in enumerate(given):
                if isinstance(argument, int):
                    check_number(function, procedure, number, int(argument))
                elif isinstance(argument, str | bytes | bytearray):
                    check_data(function, procedure, number)
        with caller.passing():
            values = [_argument(caller, argument) for argument in given]
            if procedure is not None:
                values = registers(self.emulated, function, procedure, values)
            bits = caller.call_symbol(symbol, values)
        return bits if procedure is None else from_bits(self, procedure.result, bits)

    @in_turn
    def evaluate(self, program: str, *, unchecked: bool = False,
                 limit: int = DEFAULT_LIMIT) -> Value:
        """Calls as ``kinst call`` takes them: ``'p = malloc(64, &M_TEMP, 2); free(p, &M_TEMP)'``.

        :param unchecked: as in ``call``.
        """
        statements = parse(program)
        prototypes = None if unchecked else self.kernel.prototypes
        check(self.emulated.image, statements, prototypes)
        caller = Caller(self.emulated, limit)
        with caller.passing():
            evaluation = Evaluation(caller, prototypes)
            bits = evaluation.run(statements)
        return bits if evaluation.kind is None else from_bits(self, evaluation.kind, bits)

    @in_turn
    def place(self, data: bytes | str) -> int:
        """Put bytes, or a string and a NUL, into the guest's memory; their address.

        Up to 2 KiB of them lie below the stack of the thread that stands still: through calls, and
        until the machine runs on, or goes back to a state of before.
        """
        if self._caller is None:
            self._caller = Caller(self.emulated)
        return self._caller.place(data.encode() + b"\0" if isinstance(data, str) else data)

    @in_turn
    def run(
        self, *places: str | int, console: str | tuple[str, ...] = (),
        instructions: int = DEFAULT_LIMIT, nanoseconds: int | None = None,
    ) -> Stop:
        """Let the machine run.

        :param places: where to stop: functions, ``function+offset``, or addresses.
        :param console: stop when the console's output ends with this, or with one of these.
        :param instructions: stop after so many, at the most.
        :param nanoseconds: stop after so much virtual time, at the most.
        :return: why it stopped, and where.
        """
        emulated = self.emulated
        addresses = [self._place(place) for place in places]
        for name, most in (("instructions", instructions), ("nanoseconds", nanoseconds or 0)):
            if not 0 <= most <= MOST:
                raise KinstError(f"run: {most} {name}: give 0 to {MOST}")
        stop = emulated.run(Until(
            addresses=addresses, console=console,
            instructions=emulated.instructions + instructions if emulated.counts else None,
            time=None if nanoseconds is None else emulated.now + nanoseconds))
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        return stop

    @in_turn
    def command(self, line: str, limit: int = LIMIT) -> Ran:
        """Give a command to our shell, at whose prompt the machine is, and run until it has ended.

            kernel = kinst_emu.open("kernel", userland=True)
            print(kernel.boot().command("ls / | wc").output)

        :param limit: instructions after which it is given up.
        :return: its ``output`` (bytes) and exit ``status``; None: it switched the machine off.
        :raises CommandError: when it is no line, or does not end, or there is no shell.
        """
        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError("commands are given to our machine, not to QEMU")
        return run_command(self.emulated, line, limit)

    def _place(self, place: str | int) -> int:
        if isinstance(place, int):
            if not 0 <= place < 1 << 64:
                raise KinstError(f"{int(place):#x} is not an address")
            return int(place)
        symbol = self.emulated.image.symbols.find(place.strip())
        if symbol is not None:  # of assembly, perhaps, without a size
            return symbol.address
        return code_place(self.emulated.image, place).address

    @in_turn
    def step(self, count: int = 1) -> None:
        """Execute instructions, one or more."""
        for _ in range(count):
            self.emulated.step()

    @in_turn
    def execute_again(self, instructions: int) -> None:
        """Execute up to a count of instructions, unseen by the probes: they have fired there
        before.

        :raises KinstError: on QEMU, and for what is no count.
        """
        if not 0 <= instructions <= MOST:
            raise KinstError(f"execute_again: {instructions} is no count of instructions")
        with self._bare() as machine:
            stop = machine.run(Until(instructions=instructions))
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt

    @in_turn
    def type(self, keys: str) -> None:
        """Type at the console; the guest reads it when it runs.

        :raises KinstError: while it runs, in a probe's function.
        """
        self._still()
        self.emulated.type(keys.encode())

    # -- probes -----------------------------------------------------------------------------------

    @in_turn
    def probe(self, wanted: str, fire: Fire | None = None, *, trap_path: TrapPath | None = None,
              unsafe: bool = False) -> Probes:
        """Enable probes.

        :param wanted: a description, like ``kinst::strlen:4``, ``kinst::strlen:`` (every
            instruction), ``fbt::malloc:entry``, ``kinst::inline_function:entry``.
        :param fire: called at each firing, with a :class:`Firing`.  Without it, ``records`` keeps
            the firings (the first million).
        :param trap_path: ``guest`` (the default), ``direct`` or ``double``; one for all probes of a
            machine.
        :param unsafe: also in functions that are excluded.
        :return: the probes, enabled; ``with`` disables them at its end.
        :raises KinstError: when nothing matches, or it cannot be probed.
        """
        if trap_path not in (None, *PATHS):
            raise KinstError(f"trap_path='{trap_path}': there are {', '.join(PATHS)}")
        path = trap_path or self._path
        if self._probes and path != self._path:
            raise KinstError(f"the probes of this machine fire by the trap path '{self._path}': "
                             "close them first")
        probes = Probes(self, self.remove, wanted, fire, unsafe)
        self._enable([*self._probes, probes], path)
        return probes

    @in_turn
    def remove(self, probes: Probes) -> None:
        """Disable probes; the same as ``probes.close()``."""
        if probes in self._probes and self._program is not None:  # its table stays as it is
            self._probes = [other for other in self._probes if other is not probes]
            probes.closed = True
        elif probes in self._probes:
            self._enable([other for other in self._probes if other is not probes], self._path)
            probes.closed = True

    @in_turn
    def close_probes(self) -> None:
        """Disable all probes."""
        closed = self._probes
        self._enable([], GUEST)
        for probes in closed:
            probes.closed = True

    @in_turn
    def trace(self, program: str, *arguments: object, options: Mapping[str, object] | None = None,
              trap_path: TrapPath | None = None, unsafe: bool = False, target: str = "",
              programs: Sequence[str | Path] = ()) -> Program:
        """Run a D program on the machine, beside the probes that are enabled already.

        :param arguments: ``$1``, ``$2``, ... of the program.
        :param options: as ``kdtrace -x`` takes them: ``{"strsize": 64}``; a flag is True.
        :param trap_path: as of ``probe``.
        :param unsafe: also in functions that are excluded.
        :param target: the name of the program that the next command begins with: ``$target`` is its
            process, as in ``pid$target:::entry``.
        :param programs: files of programs with symbols, beside those of our userland.
        :return: the program, enabled; ``with`` ends it at its end.
        :raises KinstError: when it does not compile, names no probe, or another one is enabled.
        """
        if trap_path not in (None, *PATHS):
            raise KinstError(f"trap_path='{trap_path}': there are {', '.join(PATHS)}")
        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError("D programs run on our machine, not on QEMU yet")
        if not isinstance(options or {}, Mapping):
            raise TypeError("options: give a dictionary, like {'strsize': 64}")
        if self._program is not None:
            raise KinstError("a D program is enabled: close it first")
        path = trap_path or self._path
        if self._probes and path != self._path:
            raise KinstError(f"the probes of this machine fire by the trap path '{self._path}': "
                             "close them first")
        before = self._breakpoints
        if before is not None:
            before.disable()
        try:
            breakpoints, told = self._table(self._probes, path)
            assert isinstance(breakpoints, Breakpoints)
            made = Program(self, self.remove_program, breakpoints, program, arguments,
                           options or {}, unsafe, target,
                           {Path(path).name: Path(path) for path in programs})
            for number in told:
                breakpoints.dispatcher.tell_also(number)
            made.begin()
        except BaseException:
            if before is not None:
                before.enable()
            raise
        self._breakpoints, self._program, self._path = breakpoints, made, path
        return made

    @property
    def program(self) -> Program | None:
        """The D program that is enabled."""
        return self._program

    @in_turn
    def remove_program(self, program: Program) -> None:
        """End a D program; the same as ``program.close()``."""
        if program is not self._program:
            return
        self._still()
        try:
            program.end()
        finally:
            self._program, self._breakpoints = None, None
            self._enable(self._probes, self._path)

    def _enable(self, wanted: list[Probes], path: TrapPath) -> None:
        """Have just these probes enabled; when that cannot be, those of before."""
        if self._program is not None:
            raise KinstError("a D program is enabled: close it before the probes change")
        before = self._breakpoints
        if before is not None:
            before.disable()
        try:
            self._breakpoints = self._made(wanted, path) if wanted else None
        except BaseException:
            if before is not None:
                before.enable()
            raise
        self._probes, self._path = wanted, path if wanted else GUEST

    def _made(self, wanted: list[Probes], path: TrapPath) -> Breakpoints | SeamBreakpoints:
        breakpoints, _told = self._table(wanted, path)
        breakpoints.enable()
        return breakpoints

    def _table(self, wanted: list[Probes], path: TrapPath
               ) -> tuple[Breakpoints | SeamBreakpoints, Iterable[int]]:
        """The probes, not enabled, and their numbers."""
        by_number: dict[int, list[Probes]] = {}
        breakpoints: Breakpoints | SeamBreakpoints
        if isinstance(self.emulated, UnicornMachine):
            breakpoints = Breakpoints(self.emulated, path=path, fire=lambda probe, state:
                                      self._fired(by_number, probe, state.get))
        elif path != GUEST:
            raise KinstError("on QEMU, breakpoints go through the guest's vectors: no trap_path")
        else:
            breakpoints = SeamBreakpoints(self.emulated, lambda probe, state:
                                          self._fired(by_number, probe, state.get))
        for probes in wanted:
            for number in probes.make(breakpoints):
                by_number.setdefault(number, []).append(probes)
        return breakpoints, by_number

    def _fired(self, by_number: dict[int, list[Probes]], probe: Probe,
               read: Callable[[str], int]) -> None:
        for probes in by_number[probe.id - 1]:
            if not probes.closed:
                probes.fired(probe, read)

    @contextlib.contextmanager
    def _bare(self) -> Iterator[UnicornMachine]:
        """The machine without its breakpoints.

        :raises KinstError: on QEMU.
        """
        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError("a machine on QEMU has no states to keep: keep one of ours, and go "
                             "to QEMU from there")
        if self._breakpoints is not None:
            self._breakpoints.disable()
        try:
            yield self.emulated
        finally:
            if self._breakpoints is not None:
                self._enable_again(self._breakpoints)

    def _enable_again(self, breakpoints: Breakpoints | SeamBreakpoints) -> None:
        try:
            breakpoints.enable()
        except KinstError as error:
            program, self._program = self._program, None
            for probes in self._probes:
                probes.closed = True
            self._probes, self._breakpoints, self._path = [], None, GUEST
            if program is not None:
                program.end()
            raise KinstError(f"the probes cannot be enabled here, and were closed: {error}"
                             ) from None

    # -- states -----------------------------------------------------------------------------------

    @in_turn
    def keep(self) -> State:
        """Keep the present state, in memory."""
        with self._bare() as machine:
            placed = self._caller.placed() if self._caller is not None else None
            return State(machine.snapshot(), self._of(), placed)

    def _of(self) -> tuple[str, int]:
        return self.emulated.image.identity, self.emulated.memory

    @in_turn
    def restore(self, state: State) -> None:
        """Go back to a state that was kept.  Probes stay as they are now.

        :raises KinstError: when the state is of another kernel, or of a machine of another size;
            when the probes cannot be enabled there (early in a boot): they are closed then.
        """
        if state.of != self._of():
            raise KinstError("the state is of another kernel, or of a machine with other memory")
        with self._bare() as machine:
            machine.restore(state.snapshot)
            self._placed(state.placed)
        if self._program is not None:
            self._program.moved()

    def _placed(self, placed: tuple[int, int, int] | None) -> None:
        self._caller = None
        if placed is not None:
            self._caller = Caller(self.emulated)
            self._caller.placed_again(placed)

    @in_turn
    def save(self, path: str | Path) -> None:
        """Write the present state to a file, for ``kernel.restore``.

        :raises SnapshotError: when it cannot be written.
        """
        with self._bare() as machine:
            snapshot.save(machine, Path(path))

    @contextlib.contextmanager
    def record(self, path: str | Path) -> Iterator[None]:
        """Keep what happens meanwhile in a file, for :class:`Recording`: it begins with the state
        the machine has now.

        :raises KinstError: when it cannot be written, or probes are enabled.
        """
        from kinst_emu.api.record_run import recorded  # recordings take a while to load

        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError("a machine on QEMU is not recorded")
        recording = contextlib.ExitStack()
        with self.turn:
            recording.enter_context(recorded(
                self.emulated, Path(path), STATE, "a Python program", quiet=True))
        try:
            yield
        finally:
            if self.turn.is_ours:  # in a forked process it goes on in the other one
                with self.turn.waited():
                    recording.close()

    @in_turn
    def digest(self) -> str:
        """The SHA-256 of memory, registers, devices, clock and console, without breakpoints."""
        with self._bare() as machine:
            return machine.digest()

    @contextlib.contextmanager
    def on_qemu(self) -> Iterator["Machine"]:
        """A machine on QEMU in the same state, for calls and probes; its CPU is QEMU's, it counts
        no instructions, and it ends with the ``with``."""
        with contextlib.ExitStack() as stack:
            with self.turn, self._bare() as machine:
                other = stack.enter_context(QemuMachine.carry(machine))
            carried = Machine(self.kernel, other)
            carried._placed(self._caller.placed() if self._caller is not None else None)
            yield carried


def _argument(caller: Caller, argument: object) -> int:
    match argument:
        case str():
            return caller.place(argument.encode() + b"\0")
        case bytes() | bytearray():
            return caller.place(bytes(argument))
        case int():
            if not -(1 << 63) <= argument < 1 << 64:
                raise KinstError(f"{int(argument):#x} does not fit 64 bits")
            return int(argument) & (1 << 64) - 1
    raise TypeError(f"{argument!r} cannot be passed to a function of the kernel")
