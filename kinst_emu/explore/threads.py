"""Creation of threads for the runs, as the initial state of every schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dtrace.calls.calls import Evaluation, Invocation, Statement
from dtrace.calls.prototypes import Prototypes, registers
from dtrace.debug.kernel_types import kernel_types
from dtrace.debug.symbols import find_function
from dtrace.stacks.threads import structure
from dwarf.types import Type, size_of
from dwarf.values import CStruct
from emu.elf.symbols import STT_GNU_IFUNC
from emu.guest.guest import ThreadStart
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT, Caller
from emu.machine.machine import Stop, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine

PATIENCE = 200_000_000  # instruction budget for starting the threads
TO_READ = 5_000_000  # instruction budget for the shell to read a line
CURRENT = "curthread"  # in a run's arguments, denotes the address of the run's own thread
APART = 64 << 10  # distance in bytes between the CPUs' stacks if the kernel has no threads


@dataclass(frozen=True)
class StartedRun:
    """A call or a program that is about to be executed.

    :param text: the run as the user wrote it.
    :param thread: address of the run's thread, or 0 if the kernel has no threads.
    :param result: type of the function's result, or None if unknown.
    :param address: address of the function, or of the first instruction of a program.
    :param arguments: argument registers of the function.
    :param program: whether the run is a program rather than a call.
    """

    text: str
    function: str
    thread: int
    result: Type | None
    address: int
    arguments: tuple[int, ...]
    program: bool = False


class StartError(KinstError):
    """Error raised if the runs cannot be started in threads."""


def _invocation(text: str, program: Sequence[Statement]) -> Invocation:
    """Return the function call that ends a run; the statements before it prepare the call."""
    last = program[-1].value
    if not isinstance(last, Invocation):
        raise KinstError(f"--run '{text}': must end with a function call, e.g. strlen(\"hello\")")
    return last


def stand_in_thread(machine: UnicornMachine) -> None:
    """Run from the shell's prompt to the system call that reads the next line.

    No lock is held at this point.

    :raises StartError: the shell does not make the call.
    """
    start = machine.guest.threads.start
    if start is None or not start.stands:
        return
    place = machine.image.symbols.find(start.stands)
    if place is None:
        return
    # If the shell is already waiting for a line, a newline makes it read another line.
    for typed in (b"", b"\n"):
        machine.type(typed)
        stop = machine.run(Until(addresses=[place.address],
                                 instructions=machine.instructions + TO_READ))
        if stop.reason is StopReason.ADDRESS:
            return
    raise StartError(f"the shell did not read its next line: {stop}")


def runs_threads(machine: UnicornMachine) -> bool:
    """Return whether the runs are kernel threads rather than calls that CPUs execute directly."""
    start = machine.guest.threads.start
    return start is not None and not (start.alone and machine.schedule.several)


def caller_of(machine: UnicornMachine, limit: int = DEFAULT_LIMIT) -> Caller:
    """Return the ``Caller`` for functions that must be called before the runs begin."""
    # Threads read their arguments later, so the arguments must not be on the stack.
    return Caller(machine, limit, on_stack=not runs_threads(machine))


def make_threads(machine: UnicornMachine, count: int, caller: Caller) -> list[int]:
    """Create a thread for each run, and stop each thread where its first function is called.

    With several CPUs, each thread is on its own CPU, it is the first thread's turn, and the other
    CPUs are held.  On one CPU, the first thread is running, and the others are queued.

    :return: addresses of the threads; 0 for each run if the kernel has no threads.
    :raises StartError: the kernel does not start the threads.
    """
    start = machine.guest.threads.start
    if start is None or not runs_threads(machine):
        return [0] * count
    stand_in_thread(machine)
    threads = _make_threads(machine, start, count, caller)
    if not machine.schedule.several:
        _queue_threads(machine, start, threads, caller)
        return threads
    _run_threads(machine, start, threads, caller)
    machine.give_turn(0, range(1, count))
    return threads


def begin_runs(machine: UnicornMachine, threads: Sequence[int],
               runs: Sequence[tuple[str, list[Statement]]], evaluation: Evaluation,
               prototypes: Prototypes | None, results: Prototypes) -> list[StartedRun]:
    """Prepare the runs so that each executes the first instruction of its function next.

    On one CPU, only the first run is prepared.

    :param runs: text and statements of each run.  The first thread executes all statements but the
        last, and evaluates the arguments.
    :param prototypes: types to check the arguments against, or None for no check.
    :param results: types of the functions' results.
    :raises KinstError: a run is not a call, or the function does not accept its arguments.
    """
    calls, count = [], len(runs)
    for number, (text, program) in enumerate(runs):
        last = _invocation(text, program)
        own = replace(evaluation, names=dict(evaluation.names))  # each run has its own variables
        if threads[number]:
            own.names[CURRENT] = threads[number]
        if program[:-1]:
            own.run(program[:-1])
        values = [own.run([Statement(None, one)]) for one in last.arguments]
        target = find_function(machine.image, last.function)
        address = target.address
        if target.kind == STT_GNU_IFUNC:
            address = evaluation.caller.call(address, [], target.name)
        procedure = prototypes.of(target.name, target.address) if prototypes else None
        passed = tuple(values)
        if procedure is not None:
            passed = tuple(registers(machine, last.function, procedure, values))
        calls.append((text, last.function, address, passed,
                      results.result(target.name, target.address)))
    if not all(threads):
        _start_cpus(machine, count, evaluation.caller)
    started = [StartedRun(text, function, thread, result, address, passed)
               for (text, function, address, passed, result), thread
               in zip(calls, threads, strict=True)]
    for number, run in enumerate(started if machine.schedule.several else started[:1]):
        machine.give_turn(number, [other for other in range(count) if other != number]
                          if machine.schedule.several else ())
        machine.arch.prepare_call(machine, run.arguments, place_of_return(machine))
        machine.pc = run.address
    machine.give_turn(0)
    return started


def place_of_return(machine: UnicornMachine) -> int:
    """Return the address to which each run returns at its end.

    This address is never executed, and differs from the return address of ``Caller``.
    """
    return machine.guest.entry_address(machine.image) + 32


def _start_cpus(machine: UnicornMachine, count: int, caller: Caller) -> None:
    """Start the other CPUs of a kernel without threads as copies of CPU 0 with separate stacks."""
    stack = machine.arch.sp
    machine.write_register(stack, caller.placed()[1])  # put the stack below the runs' data
    state = machine.cpus[0].state()
    for number in range(1, count):
        cpu = machine.cpus[number]
        cpu.on = True
        machine.give_turn(number)
        cpu.restore({**cpu.state(), **{name: value for name, value in state.items()
                                       if name not in ("timers", "timer_at")}})
        machine.write_register(stack, machine.read_register(stack) - APART * number)
    machine.give_turn(0)


def _address(machine: UnicornMachine, name: str, caller: Caller) -> int:
    """Return the address of a function; newer kernels choose one of several schedulers."""
    symbol = machine.image.symbols.find(name)
    if symbol is None:
        raise StartError(f"the kernel has no {name}, so threads cannot be created")
    if symbol.kind == STT_GNU_IFUNC:
        return caller.call(symbol.address, [], name)
    return symbol.address


def _make_threads(machine: UnicornMachine, start: ThreadStart, count: int, caller: Caller
                  ) -> list[int]:
    """Create kernel threads that are bound to CPUs and do not run yet.

    :return: addresses of the threads.
    """
    create = _address(machine, start.create, caller)
    types = kernel_types(machine.image)
    thread_type = structure(types, start.thread)
    scheduler_type = structure(types, start.scheduler, (start.cpu, start.flags))
    if thread_type is None or scheduler_type is None:
        raise StartError(f"the kernel's debug data lacks {start.thread}, or {start.scheduler} with "
                         f"{start.cpu} and {start.flags}, so threads cannot be created")
    first = place_of_first(machine)
    place, threads = caller.place(bytes(8)), list[int]()
    for number in range(count):
        name = caller.place(f"run {chr(65 + number)}".encode() + b"\0")
        machine.write(place, bytes(8))
        error = caller.call(create, [
            first, 0, 0, place, start.stopped, 0, name], start.create)
        thread = machine.read_u64(place)
        if error & 0xFFFFFFFF or not thread:
            raise StartError(f"cannot create a thread: {start.create} returned error "
                             f"{error & 0xFFFFFFFF}")
        size = size_of(thread_type)
        CStruct(thread_type, thread, machine)[start.pinned] = 1
        scheduler = CStruct(scheduler_type, thread + size, machine)
        scheduler[start.cpu] = number if machine.schedule.several else 0
        scheduler[start.flags] = int(scheduler[start.flags]) | start.bound
        threads.append(thread)
    return threads


def place_of_first(machine: UnicornMachine) -> int:
    """Return the start address of new threads; no code is executed there (see ``Caller``)."""
    return machine.guest.entry_address(machine.image) + 16


def _queue_threads(machine: UnicornMachine, start: ThreadStart, threads: Sequence[int],
                   caller: Caller) -> None:
    """Queue all threads, and run the first thread to the call of its first function."""
    add = _address(machine, start.add, caller)
    for thread in threads:
        if start.lock:
            caller.call(_address(machine, start.lock, caller), [thread, 0, 0, 0], start.lock)
        caller.call(add, [thread, 0], start.add)
    stop = machine.run(Until(addresses=[place_of_first(machine)],
                             instructions=machine.instructions + PATIENCE))
    if stop.reason is not StopReason.ADDRESS or thread_of(machine) != threads[0]:
        raise StartError(f"the threads did not start: {stop}")


def _run_threads(machine: UnicornMachine, start: ThreadStart, threads: Sequence[int],
                 caller: Caller) -> None:
    """Run each thread to the call of its first function."""
    lock, add = (_address(machine, name, caller) for name in (start.lock, start.add))
    first, held = place_of_first(machine), set[int]()
    for thread in threads:
        caller.call(lock, [thread, 0, 0, 0], start.lock)
        _call_beside(machine, add, [thread, 0], first, held)
    _run_to(machine, first, held, set(range(len(threads))))
    machine.schedule.held.clear()


def _call_beside(machine: UnicornMachine, function: int, arguments: list[int], first: int,
                 held: set[int]) -> None:
    """Call a function while other CPUs start threads; hold each CPU where its thread begins."""
    back = machine.guest.entry_address(machine.image)
    cpu, saved, top = machine.cpu.number, machine.registers(), machine.sp
    machine.arch.prepare_call(machine, tuple(arguments), back)
    machine.pc = function
    limit = machine.instructions + PATIENCE
    while True:
        stop = machine.run(Until(addresses=[back, first], instructions=limit))
        if stop.reason is not StopReason.ADDRESS:
            raise StartError(f"the threads did not start: {stop}")
        if stop.pc == back and machine.cpu.number == cpu and abs(machine.sp - top) < 64:
            break
        _hold(machine, held)
    for register, content in saved.items():
        machine.write_register(register, content)


def _hold(machine: UnicornMachine, held: set[int]) -> None:
    held.add(machine.cpu.number)
    machine.schedule.held.add(machine.cpu.number)
    if not machine.schedule.over():
        raise StartError("the threads did not start: no CPU can run")


def _run_to(machine: UnicornMachine, first: int, held: set[int], wanted: set[int]) -> None:
    limit = machine.instructions + PATIENCE
    while held != wanted:
        stop: Stop = machine.run(Until(addresses=[first], instructions=limit))
        if stop.reason is not StopReason.ADDRESS:
            raise StartError(f"the threads did not start: {stop}")
        held.add(machine.cpu.number)
        machine.schedule.held.add(machine.cpu.number)
        if held != wanted and not machine.schedule.over():
            raise StartError("the threads did not start: no CPU can run")
