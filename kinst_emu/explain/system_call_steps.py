"""The steps of a system call, from what was recorded of it."""

from collections.abc import Sequence
from itertools import groupby

from emu.guest import SystemCalls
from kinst_emu.explain.recorder import SeenInstruction
from kinst_emu.explain.steps import Step, Table, Words
from kinst_emu.explain.system_call import SeenCall

MAX_SHOWN = 60  # rows of a table of functions


def call_steps(seen: SeenCall, calls: SystemCalls, words: Words) -> list[Step]:
    """A recorded system call, step by step."""
    return [_instruction(seen, calls, words), _exception(seen, words), _entry(seen, words),
            _frame(seen, words), _dispatch(seen, words), _work(seen, calls, words),
            _result(seen, words), _leaving(seen, words), _after(seen, calls, words)]


def _who(seen: SeenCall) -> str:
    return f"{seen.process} (process {seen.pid})"


def _instruction(seen: SeenCall, calls: SystemCalls, words: Words) -> Step:
    first = seen.entry[0]
    rows, marked = list[tuple[str, ...]](), set[int]()
    place = seen.code_at
    for one in words.arch.split(seen.code):
        length = words.arch.instruction_length(one)
        if not length or length > len(one):
            break
        if place == first.address:
            marked.add(len(rows))
        rows.append((f"{place:#x}", one.hex(" "), words.arch.disassemble(one, place)))
        place += len(one)
    given = [(calls.number, f"{first.registers[calls.number]:#x}",
              f"the number of {seen.function.name.removeprefix(calls.prefix)}, {seen.number}")]
    given += [(name, f"{first.registers[name]:#x}", f"argument {number}")
              for number, name in enumerate(calls.arguments, 1)]
    return Step("instruction", "The program makes a system call", (
        f"{_who(seen)} is at {first.address:#x}, in user mode. "
        f"{words.arch.disassemble(first.code, first.address)} asks the kernel for something; what "
        "for is in registers:",
        Table(("register", "value", "what it is"), tuple(given), frozenset({0})),
        "The program's code there:",
        Table(("address", "bytes", "instruction"), tuple(rows), frozenset(marked))))


def _changed(before: SeenInstruction, after: SeenInstruction) -> tuple[tuple[str, ...], ...]:
    return tuple((name, f"{before.registers[name]:#x}", f"{value:#x}")
                 for name, value in after.registers.items() if before.registers[name] != value)


def _exception(seen: SeenCall, words: Words) -> Step:
    first, second = seen.entry[0], seen.entry[1]
    return Step("exception", "The CPU enters the kernel", (
        f"The next instruction is the kernel's, at {words.place(second.address)}. These registers "
        "have changed; the rest are still the program's:",
        Table(("register", "in the program", "in the kernel"), _changed(first, second))))


def _executed(rows: Sequence[SeenInstruction], words: Words) -> Table:
    return Table(("where", "instruction", "source"), tuple(
        (words.where(row.address), words.arch.disassemble(row.code, row.address),
         words.source(row.address)) for row in rows))


def _entry(seen: SeenCall, words: Words) -> Step:
    rows = seen.entry[1 : seen.handler]
    return Step("entry", "The kernel saves the program's registers", (
        f"{len(rows)} instructions of assembly take a stack of the kernel's, build a trap frame on "
        f"it, and call {words.where(seen.entry[seen.handler].address).partition('+')[0]}:",
        _executed(rows, words)))


def _frame(seen: SeenCall, words: Words) -> Step:
    rows = tuple((f"{seen.frame + offset:#x}", name,
                  f"{int.from_bytes(seen.before[offset : offset + size], 'little'):#x}")
                 for name, (offset, size) in words.guest.trap_frame.fields.items())
    return Step("frame", "The trap frame", (
        f"It is at {seen.frame:#x}: what the program had in its registers, and where it goes on.",
        Table(("address", "field", "value"), rows)))


def _functions(rows: Sequence[SeenInstruction], words: Words) -> Table:
    """One row for each stay in a function."""
    found = [(name, len(list(some))) for name, some in groupby(
        rows, key=lambda row: words.where(row.address).partition("+")[0])]
    shown = [(name, str(count)) for name, count in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append((f"({len(found) - MAX_SHOWN} more)", ""))
    return Table(("function", "instructions"), tuple(shown))


def _dispatch(seen: SeenCall, words: Words) -> Step:
    rows = seen.entry[seen.handler : -1]
    return Step("dispatch", f"The kernel finds {seen.function.name}", (
        f"{len(rows)} instructions of C look at what was asked for, copy the arguments to where "
        f"the call's function finds them, and call number {seen.number} of the table of system "
        f"calls, {seen.function.name}. They go through:", _functions(rows, words)))


def _work(seen: SeenCall, calls: SystemCalls, words: Words) -> Step:
    rows = [(name, str(times), str(first)) for name, (times, first) in seen.work.items()]
    parts: list[str | Table] = [
        f"{seen.function.name}, {words.source(seen.function.address) or 'without a known line'}: "
        f"{seen.spent} instructions up to its return"
        + (", what other threads did meanwhile included." if seen.others else ".")]
    if rows:
        parts.append("The functions that it enters, and how many instructions it has executed when "
                     "each is entered first:")
        shown = [*rows[:MAX_SHOWN], *([(f"({len(rows) - MAX_SHOWN} more)", "", "")]
                                      if len(rows) > MAX_SHOWN else [])]
        parts.append(Table(("function", "times", "first after"), tuple(shown)))
    returned = seen.leaving[0].registers[words.arch.result] & 0xFFFFFFFF
    if returned >> 31:  # to be made again, or with nothing to be told (ERESTART, EJUSTRETURN)
        parts.append(f"It returns {returned - (1 << 32)}: not for the program, but for the code "
                     "that called it.")
    else:
        parts.append(f"It returns {returned}: " + ("no error." if returned == 0 else
                                                  "the number of an error."))
    return Step("work", f"{seen.function.name} does it", tuple(parts))


def _result(seen: SeenCall, words: Words) -> Step:
    rows = []
    for name, (offset, size) in words.guest.trap_frame.fields.items():
        before, after = (int.from_bytes(content[offset : offset + size], "little")
                         for content in (seen.before, seen.after))
        if before != after:
            rows.append((name, f"{before:#x}", f"{after:#x}"))
    inside = seen.leaving[: seen.handled]
    return Step("result", "The result goes into the trap frame", (
        f"{len(inside)} more instructions of C put the result where the program will find it, and "
        "look whether there is something else to do before it goes on (a signal, another thread). "
        "The trap frame has changed in:",
        Table(("field", "when the function was called", "when the program goes on"), tuple(rows)),
        "They go through:", _functions(inside, words)))


def _leaving(seen: SeenCall, words: Words) -> Step:
    rows = seen.leaving[seen.handled : -1]
    return Step("leaving", "The kernel returns to the program", (
        f"{len(rows)} instructions of assembly take the registers from the trap frame; the last of "
        "them goes to user mode:", _executed(rows, words)))


def _after(seen: SeenCall, calls: SystemCalls, words: Words) -> Step:
    first, last = seen.entry[0], seen.leaving[-1]
    register, bits = calls.failed
    failed = last.registers[register] & bits
    result = last.registers[calls.result]
    rows = tuple((name, f"{value:#x}", f"{last.registers[name]:#x}")
                 for name, value in first.registers.items())
    marked = frozenset(n for n, row in enumerate(rows) if row[1] != row[2])
    kernel = (len(seen.entry) - 1) + seen.spent + len(seen.leaving) - 1
    return Step("after", "The program goes on", (
        f"It is at {last.address:#x}, {kernel} instructions later. "
        + (f"The call has failed: {register} tells so, and {calls.result} is the error's number, "
           f"{result}." if failed else f"The call has given {result:#x}, in {calls.result}."),
        Table(("register", "before the call", "behind it"), rows, marked)))
