"""The steps of a system call, from what was recorded of it."""

from emu.guest.guest import SystemCalls
from kinst_emu.explain.record.entry import SeenEntry
from kinst_emu.explain.steps.entry_steps import (
    changed_fields,
    entry,
    exception,
    frame,
    functions,
    instructions,
    leaving,
    program,
    registers_behind,
    who,
    worked,
)
from kinst_emu.explain.steps.step import Step, Table
from kinst_emu.explain.steps.words import Words


def call_steps(seen: SeenEntry, number: int, calls: SystemCalls, words: Words) -> list[Step]:
    """A recorded system call, step by step."""
    return [_instruction(seen, number, calls, words), exception(seen, words), entry(seen, words),
            frame(seen, words), _dispatch(seen, number, words), _work(seen, words),
            _result(seen, words), leaving(seen, words), _after(seen, calls, words)]


def _instruction(seen: SeenEntry, number: int, calls: SystemCalls, words: Words) -> Step:
    first = seen.entry.rows[0]
    given = [(calls.number, first.registers[calls.number],
              f"the number of {seen.function.name.removeprefix(calls.prefix)}, {number}")]
    given += [(name, first.registers[name], f"argument {place}")
              for place, name in enumerate(calls.arguments, 1)]
    return Step("instruction", "The program makes a system call", (
        f"{who(seen)} is at {first.address:#x}, in user mode. "
        f"{words.arch.disassemble(first.code, first.address)} asks the kernel for something; what "
        "for is in registers:",
        Table(("register", "value", "what it is"), tuple(given), frozenset({0})),
        "The program's code there:", program(seen, words)))


def _dispatch(seen: SeenEntry, number: int, words: Words) -> Step:
    rows = seen.entry.rows[seen.entry.boundary : -1]
    return Step("dispatch", f"The kernel finds {seen.function.name}", (
        f"{len(rows)} instructions of C look at what was asked for, copy the arguments to where "
        f"the call's function finds them, and call number {number} of the table of system "
        f"calls, {seen.function.name}. They go through:", functions(rows, words)))


def _work(seen: SeenEntry, words: Words) -> Step:
    parts: list[str | Table] = [
        f"{seen.function.name}, {words.source(seen.function.address) or 'without a known line'}: "
        f"{seen.spent} instructions up to its return"
        + (", what other threads did meanwhile included." if seen.others else "."),
        *worked(seen)]
    returned = seen.leaving.rows[0].registers[words.arch.result] & 0xFFFFFFFF
    if returned >> 31:  # to be made again, or with nothing to be told (ERESTART, EJUSTRETURN)
        parts.append(f"It returns {returned - (1 << 32)}: not for the program, but for the code "
                     "that called it.")
    else:
        parts.append(f"It returns {returned}: " + ("no error." if returned == 0 else
                                                  "the number of an error."))
    return Step("work", f"{seen.function.name} does it", tuple(parts))


def _result(seen: SeenEntry, words: Words) -> Step:
    inside = seen.leaving.rows[: seen.leaving.boundary]
    return Step("result", "The result goes into the trap frame", (
        f"{len(inside)} more instructions of C put the result where the program will find it, and "
        "look whether there is something else to do before it goes on (a signal, another thread). "
        "The trap frame has changed in:",
        Table(("field", "when the function was called", "when the program goes on"),
              changed_fields(seen, words)),
        "They go through:", functions(inside, words)))


def _after(seen: SeenEntry, calls: SystemCalls, words: Words) -> Step:
    last = seen.leaving.rows[-1]
    register, bits = calls.failed
    failed = last.registers[register] & bits
    result = last.registers[calls.result]
    return Step("after", "The program goes on", (
        f"It is at {last.address:#x}, {instructions(seen)} instructions later. "
        + (f"The call has failed: {register} tells so, and {calls.result} is the error's number, "
           f"{result}." if failed else f"The call has given {result:#x}, in {calls.result}."),
        registers_behind(seen)))
