"""Each run in a thread of its own, on a CPU of its own or all on one: the state from which all
orders begin."""

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

PATIENCE = 200_000_000  # instructions in which the threads begin to run
TO_READ = 5_000_000  # in which the shell reads a line
CURRENT = "curthread"  # in a run's arguments, the address of its own thread
APART = 64 << 10  # bytes between the stacks of CPUs that have no threads


@dataclass(frozen=True)
class StartedRun:
    """A call that is about to be executed.

    :param text: as it was given.
    :param thread: the address of its thread; 0: the kernel has none.
    :param result: the type of what its function gives; None: it is not known.
    :param address: of the function, which is called with ``arguments``; of a ``program``, its first
        instruction.
    """

    text: str
    function: str
    thread: int
    result: Type | None
    address: int
    arguments: tuple[int, ...]
    program: bool = False


class StartError(KinstError):
    """The runs cannot be put into threads."""


def _invocation(text: str, program: Sequence[Statement]) -> Invocation:
    """The last statement, which is the run; those before it are done first."""
    last = program[-1].value
    if not isinstance(last, Invocation):
        raise KinstError(f"--run '{text}': is to end with a call, like strlen(\"hello\")")
    return last


def stand_in_thread(machine: UnicornMachine) -> None:
    """From the prompt of our shell to where it enters the kernel for the next line, with no lock
    held.

    :raises StartError: when it does not come there.
    """
    start = machine.guest.threads.start
    if start is None or not start.stands:
        return
    place = machine.image.symbols.find(start.stands)
    if place is None:
        return
    for typed in (b"", b"\n"):  # it may have come behind that already
        machine.type(typed)
        stop = machine.run(Until(addresses=[place.address],
                                 instructions=machine.instructions + TO_READ))
        if stop.reason is StopReason.ADDRESS:
            return
    raise StartError(f"the shell does not read its next line: {stop}")


def runs_threads(machine: UnicornMachine) -> bool:
    """Whether runs are threads of the kernel; else its CPUs run what they are given."""
    start = machine.guest.threads.start
    return start is not None and not (start.alone and machine.schedule.several)


def caller_of(machine: UnicornMachine, limit: int = DEFAULT_LIMIT) -> Caller:
    """Who calls before the runs begin; threads go on over what was on the stack."""
    return Caller(machine, limit, on_stack=not runs_threads(machine))


def make_threads(machine: UnicornMachine, count: int, caller: Caller) -> list[int]:
    """A thread for each run, where its first function is called, on a CPU of its own; or all on the
    only one, the first there, the others queued.  0 where the kernel has no threads.  It is the
    first one's turn then, and other CPUs are held.

    :raises StartError: when the kernel does not start them.
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
    """Have each run about to execute its function's first instruction.

    :param runs: the text of each, and what it is; its other statements are done here, and its
        arguments made, by the first thread.  On one CPU it is the first that begins.
    :param prototypes: which they are held to; ``results``: what the functions give.
    :raises KinstError: for a run that is no call, or arguments that it does not take.
    """
    calls, count = [], len(runs)
    for number, (text, program) in enumerate(runs):
        last = _invocation(text, program)
        own = replace(evaluation, names=dict(evaluation.names))  # what it assigns is its own
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
    """Where each run comes to when it is done: never executed, and not where calls return to."""
    return machine.guest.entry_address(machine.image) + 32


def _start_cpus(machine: UnicornMachine, count: int, caller: Caller) -> None:
    """A kernel without threads: the other CPUs are what the first is, with a stack of their own."""
    stack = machine.arch.sp
    machine.write_register(stack, caller.placed()[1])  # below what was placed for the runs
    state = machine.cpus[0].state()
    for number in range(1, count):
        cpu = machine.cpus[number]
        cpu.on = True
        machine.give_turn(number)
        cpu.restore({**cpu.state(), **{name: value for name, value in state.items()
                                       if name not in ("timers", "timer_at")}})
        machine.write_register(stack, machine.read_register(stack) - APART * number)
    machine.give_turn(0)


def _address(machine: UnicornMachine, name: str) -> int:
    symbol = machine.image.symbols.find(name)
    if symbol is None:
        raise StartError(f"the kernel has no {name}: threads cannot be made in it")
    return symbol.address


def _make_threads(machine: UnicornMachine, start: ThreadStart, count: int, caller: Caller
                  ) -> list[int]:
    """Threads of the kernel's own, each bound to a CPU; they do not run yet.

    :return: their addresses.
    """
    create = _address(machine, start.create)
    types = kernel_types(machine.image)
    thread_type = structure(types, start.thread)
    scheduler_type = structure(types, start.scheduler)
    if thread_type is None or scheduler_type is None:
        raise StartError(f"the kernel's debug data has no {start.thread}, or {start.scheduler}: "
                         "threads cannot be made in it")
    first = place_of_first(machine)
    place, found = caller.place(bytes(8)), list[int]()
    for number in range(count):
        name = caller.place(f"run {chr(65 + number)}".encode() + b"\0")
        machine.write(place, bytes(8))
        error = caller.call(create, [
            first, 0, 0, place, start.stopped, 0, name], start.create)
        thread = machine.read_u64(place)
        if error & 0xFFFFFFFF or not thread:
            raise StartError(f"{start.create} has failed (error {error & 0xFFFFFFFF})")
        size = size_of(thread_type)
        CStruct(thread_type, thread, machine)[start.pinned] = 1
        scheduler = CStruct(scheduler_type, thread + size, machine)
        scheduler[start.cpu] = number if machine.schedule.several else 0
        scheduler[start.flags] = int(scheduler[start.flags]) | start.bound
        found.append(thread)
    return found


def place_of_first(machine: UnicornMachine) -> int:
    """Where a new thread comes to first: never executed, as the place where calls return to."""
    return machine.guest.entry_address(machine.image) + 16


def _queue_threads(machine: UnicornMachine, start: ThreadStart, threads: Sequence[int],
                   caller: Caller) -> None:
    """Have all be queued, and the first run as far as where its first function is called."""
    add = _address(machine, start.add)
    for thread in threads:
        if start.lock:
            caller.call(_address(machine, start.lock), [thread, 0, 0, 0], start.lock)
        caller.call(add, [thread, 0], start.add)
    stop = machine.run(Until(addresses=[place_of_first(machine)],
                             instructions=machine.instructions + PATIENCE))
    if stop.reason is not StopReason.ADDRESS or thread_of(machine) != threads[0]:
        raise StartError(f"the threads do not begin to run: {stop}")


def _run_threads(machine: UnicornMachine, start: ThreadStart, threads: Sequence[int],
                 caller: Caller) -> None:
    """Have each run, as far as where its first function is called."""
    lock, add = _address(machine, start.lock), _address(machine, start.add)
    first, held = place_of_first(machine), set[int]()
    for thread in threads:
        caller.call(lock, [thread, 0, 0, 0], start.lock)
        _call_beside(machine, add, [thread, 0], first, held)
    _run_to(machine, first, held, set(range(len(threads))))
    machine.schedule.held.clear()


def _call_beside(machine: UnicornMachine, function: int, arguments: list[int], first: int,
                 held: set[int]) -> None:
    """A call, while other CPUs begin to run the threads: each stops where its thread begins."""
    back = machine.guest.entry_address(machine.image)
    cpu, saved, top = machine.cpu.number, machine.registers(), machine.sp
    machine.arch.prepare_call(machine, tuple(arguments), back)
    machine.pc = function
    limit = machine.instructions + PATIENCE
    while True:
        stop = machine.run(Until(addresses=[back, first], instructions=limit))
        if stop.reason is not StopReason.ADDRESS:
            raise StartError(f"the threads do not begin to run: {stop}")
        if stop.pc == back and machine.cpu.number == cpu and abs(machine.sp - top) < 64:
            break
        _hold(machine, held)
    for register, content in saved.items():
        machine.write_register(register, content)


def _hold(machine: UnicornMachine, held: set[int]) -> None:
    held.add(machine.cpu.number)
    machine.schedule.held.add(machine.cpu.number)
    if not machine.schedule.over():
        raise StartError("the threads do not begin to run: no CPU goes on")


def _run_to(machine: UnicornMachine, first: int, held: set[int], wanted: set[int]) -> None:
    limit = machine.instructions + PATIENCE
    while held != wanted:
        stop: Stop = machine.run(Until(addresses=[first], instructions=limit))
        if stop.reason is not StopReason.ADDRESS:
            raise StartError(f"the threads do not begin to run: {stop}")
        held.add(machine.cpu.number)
        machine.schedule.held.add(machine.cpu.number)
        if held != wanted and not machine.schedule.over():
            raise StartError("the threads do not begin to run: no CPU goes on")
