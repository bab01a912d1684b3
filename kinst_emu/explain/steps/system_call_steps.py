"""Steps that explain a recorded system call."""

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
    """Return the steps of a recorded system call."""
    return [_instruction(seen, number, calls, words), exception(seen, words), entry(seen, words),
            frame(seen, words), _dispatch(seen, number, words), _work(seen, words),
            _result(seen, words), leaving(seen, words), _after(seen, calls, words)]


def _instruction(seen: SeenEntry, number: int, calls: SystemCalls, words: Words) -> Step:
    first = seen.entry.rows[0]
    registers = [(calls.number, first.registers[calls.number],
                  f"number of {seen.function.name.removeprefix(calls.prefix)}: {number}")]
    registers += [(name, first.registers[name], f"argument {place}")
                  for place, name in enumerate(calls.arguments, 1)]
    return Step("instruction", "The program makes a system call", (
        f"{who(seen)} is at {first.address:#x}, in user mode. "
        f"{words.arch.disassemble(first.code, first.address)} requests a service of the kernel, "
        "which these registers specify:",
        Table(("register", "value", "meaning"), tuple(registers), frozenset({0})),
        "The program's code around the instruction:", program(seen, words)))


def _dispatch(seen: SeenEntry, number: int, words: Words) -> Step:
    rows = seen.entry.rows[seen.entry.boundary : -1]
    return Step("dispatch", f"The kernel finds {seen.function.name}", (
        f"{len(rows)} instructions of C examine the request, copy the arguments to where the "
        f"function expects them, and call entry {number} of the system call table, "
        f"{seen.function.name}. The functions that run:", functions(rows, words)))


def _work(seen: SeenEntry, words: Words) -> Step:
    parts: list[str | Table] = [
        f"{seen.function.name} ({words.source(seen.function.address) or 'source line unknown'}): "
        f"{seen.spent} instructions until it returns"
        + (", including those of other threads that ran meanwhile." if seen.others else "."),
        *worked(seen)]
    returned = seen.leaving.rows[0].registers[words.arch.result] & 0xFFFFFFFF
    if returned >> 31:  # ERESTART and EJUSTRETURN are negative and never reach the program
        parts.append(f"It returns {returned - (1 << 32)}, which is not for the program but for the "
                     "code that called the function.")
    else:
        parts.append(f"It returns {returned}: " + ("no error." if returned == 0 else
                                                  "an error number."))
    return Step("work", f"{seen.function.name} does the work", tuple(parts))


def _result(seen: SeenEntry, words: Words) -> Step:
    inside = seen.leaving.rows[: seen.leaving.boundary]
    return Step("result", "The result is stored in the trap frame", (
        f"{len(inside)} more instructions of C store the result where the program will find it, "
        "and check whether anything else is to be done before it resumes (a signal, another "
        "thread). These fields of the trap frame have changed:",
        Table(("field", "when the function was called", "when the program resumes"),
              changed_fields(seen, words)),
        "The functions that run:", functions(inside, words)))


def _after(seen: SeenEntry, calls: SystemCalls, words: Words) -> Step:
    last = seen.leaving.rows[-1]
    register, bits = calls.failed
    failed = last.registers[register] & bits
    result = last.registers[calls.result]
    return Step("after", "The program resumes", (
        f"It is at {last.address:#x}, {instructions(seen)} instructions later. "
        + (f"The call has failed: {register} shows it, and {calls.result} is the error number, "
           f"{result}." if failed else f"The call has returned {result:#x}, in {calls.result}."),
        registers_behind(seen)))
