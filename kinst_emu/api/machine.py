"""Machines, as used by Python programs."""

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
from emu.devices.serial_port import SerialPort
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT, Caller
from emu.machine.machine import Stop, StopReason, Until
from emu.qemu.machine import QemuMachine
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot
from images.boots import LIMIT
from images.login import IDLE
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

MOST = 1 << 62  # maximum length of a run, in instructions or in nanoseconds


@dataclass(frozen=True)
class State:
    """Snapshot of a machine's state, kept in memory.

    :param of: identity of the kernel and size of RAM in bytes; the state can only be restored on a
        machine with the same kernel and size.
    :param placed: stack space that ``place`` had used.
    """

    snapshot: Snapshot
    of: tuple[str, int]
    placed: tuple[int, int, int] | None


class Machine(Inspected):
    """Emulated machine that runs a kernel.

    The guest executes only during calls of methods like ``run``, ``call`` and ``step``.

    :param emulated: the underlying machine, Unicorn's or QEMU's.
    """

    def __init__(self, kernel: KernelFile, emulated: UnicornMachine | QemuMachine) -> None:
        super().__init__(kernel, emulated)
        self._caller: Caller | None = None
        self._probes: list[Probes] = []
        self._breakpoints: Breakpoints | SeamBreakpoints | None = None
        self._path: TrapPath = GUEST
        self._program: Program | None = None
        self._second = bytearray()
        if isinstance(emulated, UnicornMachine) and emulated.board.second is not None:
            self._listen(emulated.board.second)

    def _listen(self, port: SerialPort) -> None:
        """Keep the output of a serial port, in addition to what else happens with it."""
        before = port.output

        def sent(byte: int) -> None:
            before(byte)
            self._second.append(byte)

        port.output = sent

    # -- running ----------------------------------------------------------------------------------

    def explore(self, *runs: str, **asked: Any) -> "Explored":
        """Explore the interleavings of calls on another machine that runs the same kernel.

        The arguments are those of ``kinst_emu.explore.from_python.explore``.
        """
        from kinst_emu.explore.from_python import explore

        return explore(self.emulated.image, *runs, **asked)

    @in_turn
    def call(self, function: str, *arguments: object, unchecked: bool = False,
             limit: int = DEFAULT_LIMIT) -> Value:
        """Call a function of the kernel.

        :param arguments: numbers, pointers, None, structures and arrays (passed by address).
            Strings (with a NUL appended) and bytes are placed in guest memory for the call.
        :param unchecked: ignore the function's prototype: pass the arguments unchecked and return
            the result register.
        :param limit: maximum number of instructions of the call.
        :return: the result with its C type; a number if the prototype is unknown.
        :raises CallError: when the function panics, faults or does not return.
        :raises KinstError: when the kernel has no such function, or the arguments do not match its
            prototype.
        """
        symbol = find_function(self.emulated.image, function)
        caller = Caller(self.emulated, limit)
        passed = [addressof(a) if isinstance(a, CStruct | CArray) else 0 if a is None else a
                 for a in arguments]
        procedure = None
        if not unchecked:
            procedure = self.kernel.prototypes.of(symbol.name, symbol.address)
        if procedure is not None:
            check_shape(function, procedure, len(passed))
            for number, argument in enumerate(passed):
                if isinstance(argument, int):
                    check_number(function, procedure, number, int(argument))
                elif isinstance(argument, str | bytes | bytearray):
                    check_data(function, procedure, number)
        with caller.passing():
            values = [_argument(caller, argument) for argument in passed]
            if procedure is not None:
                values = registers(self.emulated, function, procedure, values)
            bits = caller.call_symbol(symbol, values)
        return bits if procedure is None else from_bits(self, procedure.result, bits)

    @in_turn
    def evaluate(self, program: str, *, unchecked: bool = False,
                 limit: int = DEFAULT_LIMIT) -> Value:
        """Evaluate calls in the syntax of ``kinst call``, and return the last result.

        For example: ``'p = malloc(64, &M_TEMP, 2); free(p, &M_TEMP)'``.

        :param unchecked: as for ``call``.
        :param limit: maximum number of instructions of each call.
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
        """Copy bytes or a NUL-terminated string into guest memory, and return their address.

        Up to 2 KiB are placed below the stack of the stopped thread.  They stay there during calls,
        until the machine continues to run or goes back to an earlier state.
        """
        if self._caller is None:
            self._caller = Caller(self.emulated)
        return self._caller.place(data.encode() + b"\0" if isinstance(data, str) else data)

    @in_turn
    def run(
        self, *places: str | int, console: str | tuple[str, ...] = (),
        instructions: int = DEFAULT_LIMIT, nanoseconds: int | None = None,
    ) -> Stop:
        """Run the machine until one of the given conditions stops it.

        :param places: places to stop at: functions, ``function+offset``, or addresses.
        :param console: stop when the console output ends with this text, or with one of these.
        :param instructions: maximum number of instructions to execute.
        :param nanoseconds: maximum virtual time to run.
        :return: why and where the machine stopped.
        """
        emulated = self.emulated
        addresses = [self._place(place) for place in places]
        for name, maximum in (("instructions", instructions), ("nanoseconds", nanoseconds or 0)):
            if not 0 <= maximum <= MOST:
                raise KinstError(f"run: cannot run for {maximum} {name}: give 0 to {MOST}")
        stop = emulated.run(Until(
            addresses=addresses, console=console,
            instructions=emulated.instructions + instructions if emulated.counts else None,
            time=None if nanoseconds is None else emulated.now + nanoseconds))
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        return stop

    @in_turn
    def command(self, line: str, limit: int = LIMIT, idle: float = IDLE / 1e9) -> Ran:
        """Run a command in the guest's shell, and wait until it ends.

        The machine must be at the shell prompt of kinst's userland or of a base system::

            kernel = kinst_emu.open("kernel", userland=True)
            print(kernel.boot().command("ls / | wc").output)

        :param limit: maximum number of instructions of the command.
        :param idle: virtual seconds without work or console output after which the command is
            abandoned.
        :return: the command's ``output`` (bytes) and exit ``status``, which is None if the command
            powered the machine off.
        :raises CommandError: when the command is not a valid line or does not end, or the machine
            is not at a shell prompt.
        """
        if not 0 < idle <= MOST / 1e9:
            raise KinstError(f"command: idle={idle!r} must be a positive number of seconds")
        return run_command(self._unicorn("command()"), line, limit, int(idle * 1e9))

    def _place(self, place: str | int) -> int:
        if isinstance(place, int):
            if not 0 <= place < 1 << 64:
                raise KinstError(f"{int(place):#x} is not a 64-bit address")
            return int(place)
        symbol = self.emulated.image.symbols.find(place.strip())
        if symbol is not None:  # ``find`` includes assembly routines, whose symbols have no size
            return symbol.address
        return code_place(self.emulated.image, place).address

    @in_turn
    def step(self, count: int = 1) -> None:
        """Execute ``count`` instructions."""
        for _ in range(count):
            self.emulated.step()

    @in_turn
    def execute_again(self, instructions: int) -> None:
        """Execute instructions that were executed before, without firing their probes again.

        :param instructions: instruction count since the start of the boot at which to stop.
        :raises KinstError: on QEMU, or when the count is out of range.
        """
        if not 0 <= instructions <= MOST:
            raise KinstError(f"execute_again({instructions}): the instruction count must be 0 to "
                             f"{MOST}")
        with self._bare() as machine:
            stop = machine.run(Until(instructions=instructions))
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt

    @in_turn
    def type(self, keys: str) -> None:
        """Type text at the console; the guest reads the text when the machine runs next.

        :raises KinstError: in a probe's callback, while the guest is running.
        """
        self._still()
        self.emulated.type(keys.encode())

    @in_turn
    def type_second(self, keys: str) -> None:
        """Type text at the second serial port (``open(..., serial=True)``)."""
        self._still()
        self._unicorn("type_second()").type_second(keys.encode())

    @property
    def second_output(self) -> bytes:
        """What the guest has written to the second serial port while this object existed.

        :raises KinstError: when the machine has no second serial port.
        """
        if self._unicorn("second_output").board.second is None:
            raise KinstError("second_output: the machine has no second serial port; open the "
                             "kernel with serial=True")
        return bytes(self._second)

    @in_turn
    def send_frame(self, frame: bytes, nanoseconds: int = 0) -> None:
        """Let an Ethernet frame arrive at the network device (``open(..., network="wire")``).

        :param nanoseconds: virtual time until the arrival.
        :raises KinstError: when the machine has no network device, or the frame has an invalid
            size; in a probe's callback, while the guest is running.
        """
        self._still()
        machine = self._unicorn("send_frame()")
        machine.send_frame(machine.now + nanoseconds, frame)

    @contextlib.contextmanager
    def captured(self) -> Iterator[list[tuple[int, bytes]]]:
        """Capture the frames that the guest sends and receives during a ``with`` block.

        The block's variable is the list of (virtual time in nanoseconds, frame).

        :raises KinstError: when the machine has no network device.
        """
        network = self._unicorn("captured()").board.network
        if network is None:
            raise KinstError("captured(): the machine has no network device; open the kernel with "
                             "network=\"peer\" or network=\"wire\"")
        frames: list[tuple[int, bytes]] = []
        before, network.listener = network.listener, lambda when, frame: frames.append(
            (when, frame))
        try:
            yield frames
        finally:
            network.listener = before

    def _unicorn(self, what: str) -> UnicornMachine:
        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError(f"{what} needs a machine on Unicorn: it does not work on QEMU")
        return self.emulated

    # -- probes -----------------------------------------------------------------------------------

    @in_turn
    def probe(self, wanted: str, fire: Fire | None = None, *, trap_path: TrapPath | None = None,
              unsafe: bool = False) -> Probes:
        """Enable the probes that match a probe description.

        :param wanted: a probe description, like ``kinst::strlen:4``, ``kinst::strlen:`` (every
            instruction), ``fbt::malloc:entry``, ``kinst::inline_function:entry``.
        :param fire: callback that is called at each firing with a :class:`Firing`.  Without a
            callback, the first million firings are kept in ``records``.
        :param trap_path: ``guest`` (the default), ``direct`` or ``double``; all probes of a machine
            must use the same path.
        :param unsafe: probe functions that are excluded by default, too.
        :return: the enabled probes; in a ``with`` statement, they are disabled at its end.
        :raises KinstError: when no probe matches, or a matching instruction cannot be probed.
        """
        if trap_path not in (None, *PATHS):
            raise KinstError(f"trap_path='{trap_path}': must be one of {', '.join(PATHS)}")
        path = trap_path or self._path
        if self._probes and path != self._path:
            raise KinstError(f"the enabled probes use trap_path='{self._path}': close them before "
                             "using another path")
        probes = Probes(self, self.remove, wanted, fire, unsafe)
        self._enable([*self._probes, probes], path)
        return probes

    @in_turn
    def remove(self, probes: Probes) -> None:
        """Disable the given probes, as ``probes.close()`` does."""
        # An enabled D program uses the probe table, which therefore cannot be replaced.
        if probes in self._probes and self._program is not None:
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
        """Run a D program on the machine, along with the probes that are already enabled.

        :param arguments: values of ``$1``, ``$2``, ... in the program.
        :param options: D options, as for ``kdtrace -x``: ``{"strsize": 64}``; True sets a flag.
        :param trap_path: as for ``probe``.
        :param unsafe: probe functions that are excluded by default, too.
        :param target: name of the program that the next command starts: ``$target`` is its process,
            as in ``pid$target:::entry``.
        :param programs: files of programs with symbols, in addition to those of kinst's userland.
        :return: the enabled program; in a ``with`` statement, it is ended at the end.
        :raises KinstError: when the program does not compile or matches no probe, or another
            program is enabled.
        """
        if trap_path not in (None, *PATHS):
            raise KinstError(f"trap_path='{trap_path}': must be one of {', '.join(PATHS)}")
        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError("D programs need a machine on Unicorn: they do not run on QEMU")
        if not isinstance(options or {}, Mapping):
            raise TypeError("options must be a dictionary, like {'strsize': 64}")
        if self._program is not None:
            raise KinstError("another D program is enabled: close it first")
        path = trap_path or self._path
        if self._probes and path != self._path:
            raise KinstError(f"the enabled probes use trap_path='{self._path}': close them before "
                             "using another path")
        before = self._breakpoints
        if before is not None:
            before.disable()
        try:
            breakpoints, probe_numbers = self._table(self._probes, path)
            assert isinstance(breakpoints, Breakpoints)
            new_program = Program(self, self.remove_program, breakpoints, program, arguments,
                           options or {}, unsafe, target,
                           {Path(path).name: Path(path) for path in programs})
            for number in probe_numbers:
                breakpoints.dispatcher.tell_also(number)
            new_program.begin()
        except BaseException:
            if before is not None:
                before.enable()
            raise
        self._breakpoints, self._program, self._path = breakpoints, new_program, path
        return new_program

    @property
    def program(self) -> Program | None:
        """The enabled D program, or None."""
        return self._program

    @in_turn
    def remove_program(self, program: Program) -> None:
        """End a D program, as ``program.close()`` does."""
        if program is not self._program:
            return
        self._still()
        try:
            program.end()
        finally:
            self._program, self._breakpoints = None, None
            self._enable(self._probes, self._path)

    def _enable(self, wanted: list[Probes], path: TrapPath) -> None:
        """Enable only the given probes; if that fails, enable the previous probes again."""
        if self._program is not None:
            raise KinstError("a D program is enabled: close it before changing the probes")
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
        """Create probes without enabling them; return the probe table and the probe numbers."""
        by_number: dict[int, list[Probes]] = {}
        breakpoints: Breakpoints | SeamBreakpoints
        if isinstance(self.emulated, UnicornMachine):
            breakpoints = Breakpoints(self.emulated, path=path, fire=lambda probe, state:
                                      self._fired(by_number, probe, state.get))
        elif path != GUEST:
            raise KinstError("on QEMU, breakpoints always use the guest's vectors: leave out "
                             "trap_path")
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
        """Disable the breakpoints of the machine during a ``with`` block.

        :raises KinstError: on QEMU.
        """
        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError("a machine on QEMU cannot keep, restore or save its state: do this "
                             "on the Unicorn machine before you call on_qemu()")
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
            raise KinstError(f"the probes were closed because they cannot be enabled again: {error}"
                             ) from None

    # -- states -----------------------------------------------------------------------------------

    @in_turn
    def keep(self) -> State:
        """Return a snapshot of the machine's current state, kept in memory."""
        with self._bare() as machine:
            placed = self._caller.placed() if self._caller is not None else None
            return State(machine.snapshot(), self._of(), placed)

    def _of(self) -> tuple[str, int]:
        image = self.emulated.image
        return f"{image.identity} {image.options.late_digest}", self.emulated.memory

    @in_turn
    def restore(self, state: State) -> None:
        """Restore a state that ``keep`` returned; enabled probes stay enabled.

        :raises KinstError: when the state belongs to another kernel or RAM size, or when the probes
            cannot be enabled in that state (early in a boot), in which case they are closed.
        """
        if state.of != self._of():
            raise KinstError("the state belongs to another kernel, or to a machine with a "
                             "different RAM size")
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
        """Write the current state to a snapshot file, for ``kernel.restore``.

        :raises SnapshotError: when the file cannot be written.
        """
        with self._bare() as machine:
            snapshot.save(machine, Path(path))

    @contextlib.contextmanager
    def record(self, path: str | Path, self_contained: bool = False) -> Iterator[None]:
        """Record the machine's run to a file during a ``with`` block.

        :class:`Recording` opens the file.

        :param self_contained: whether the file contains the machine's state at its start, and large
            disks.  Otherwise the state is in the cache, and the file refers to it and to the disks.
        :raises KinstError: when the file cannot be written, or probes are enabled.
        """
        from kinst_emu.api.record_run import recorded  # deferred, because the import is slow

        if not isinstance(self.emulated, UnicornMachine):
            raise KinstError("a machine on QEMU cannot be recorded")
        recording = contextlib.ExitStack()
        with self.turn:
            recording.enter_context(recorded(
                self.emulated, Path(path), STATE, "a Python program", quiet=True,
                self_contained=self_contained))
        try:
            yield
        finally:
            if self.turn.is_ours:  # A forked child leaves the recording to its parent.
                with self.turn.waited():
                    recording.close()

    @in_turn
    def digest(self) -> str:
        """Return the SHA-256 of memory, registers, devices, clock and console.

        Breakpoints do not influence it.
        """
        with self._bare() as machine:
            return machine.digest()

    @contextlib.contextmanager
    def on_qemu(self) -> Iterator["Machine"]:
        """Create a machine on QEMU with the same state, for use in a ``with`` block.

        Its CPU is emulated by QEMU, which does not count instructions.  It is shut down at the end
        of the block.
        """
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
                raise KinstError(f"{int(argument):#x} does not fit in 64 bits")
            return int(argument) & (1 << 64) - 1
    raise TypeError(f"{argument!r} cannot be passed to a kernel function")
