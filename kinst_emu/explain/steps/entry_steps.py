"""Steps and tables shared by the explanations of system calls and page faults."""

from collections.abc import Sequence
from itertools import groupby

from kinst_emu.explain.record.entry import SeenEntry
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.steps.step import Count, Step, Table, Value
from kinst_emu.explain.steps.words import Words

MAX_SHOWN = 60  # maximum number of rows in a table of functions


def who(seen: SeenEntry) -> str:
    """Return the name and the number of the program's process."""
    return f"{seen.process} (process {seen.pid})"


def program(seen: SeenEntry, words: Words) -> Table:
    """Return a table of the program's code around the instruction that entered the kernel."""
    first = seen.entry.rows[0]
    rows, marked = list[tuple[Value, ...]](), set[int]()
    address = seen.code_at
    for code in words.arch.split(seen.code):
        length = words.arch.instruction_length(code)
        if not length or length > len(code):
            break
        if address == first.address:
            marked.add(len(rows))
        rows.append((address, code, words.arch.disassemble(code, address)))
        address += len(code)
    return Table(("address", "bytes", "instruction"), tuple(rows), frozenset(marked))


def exception(seen: SeenEntry, words: Words) -> Step:
    """Return the step in which the CPU enters the kernel."""
    first, second = seen.entry.rows[0], seen.entry.rows[1]
    return Step("exception", "The CPU enters the kernel", (
        f"The next instruction is the kernel's, at {words.place(second.address)}. These registers "
        "have changed; all others still have the program's values:",
        Table(("register", "in the program", "in the kernel"), _changed(first, second))))


def _changed(before: SeenInstruction, after: SeenInstruction) -> tuple[tuple[Value, ...], ...]:
    return tuple((name, before.registers[name], value)
                 for name, value in after.registers.items() if before.registers[name] != value)


def executed(rows: Sequence[SeenInstruction], words: Words) -> Table:
    """Return a table of executed instructions."""
    return Table(("where", "instruction", "source"), tuple(
        (words.where(row.address), words.arch.disassemble(row.code, row.address),
         words.source(row.address)) for row in rows))


def entry(seen: SeenEntry, words: Words) -> Step:
    """Return the step in which the kernel saves the program's registers."""
    rows = seen.entry.rows[1 : seen.entry.boundary]
    handler = words.where(seen.entry.rows[seen.entry.boundary].address).partition("+")[0]
    return Step("entry", "The kernel saves the program's registers", (
        f"{len(rows)} instructions of assembly code, and of functions that it calls, switch to a "
        f"kernel stack, build a trap frame on it, and call {handler}:",
        executed(rows, words)))


def frame(seen: SeenEntry, words: Words) -> Step:
    """Return the step that shows the trap frame."""
    rows = tuple((seen.frame + offset, name,
                  int.from_bytes(seen.before[offset : offset + size], "little"))
                 for name, (offset, size) in words.guest.traps.trap_frame.fields.items())
    return Step("frame", "The trap frame", (
        f"The trap frame at {seen.frame:#x} holds the program's registers and the address where "
        "the program resumes.",
        Table(("address", "field", "value"), rows)))


def functions(rows: Sequence[SeenInstruction], words: Words) -> Table:
    """Return a table of functions, with a row for each uninterrupted stay in a function."""
    stays = [(name, len(list(group))) for name, group in groupby(
        rows, key=lambda row: words.where(row.address).partition("+")[0])]
    shown: list[tuple[Value, ...]] = [(name, Count(count)) for name, count in stays[:MAX_SHOWN]]
    if len(stays) > MAX_SHOWN:
        shown.append((f"({len(stays) - MAX_SHOWN} more)", ""))
    return Table(("function", "instructions"), tuple(shown))


def worked(seen: SeenEntry) -> list[str | Table]:
    """Return an introduction and a table of the called functions, or [] if none was called."""
    rows: list[tuple[Value, ...]] = [
        (name, Count(times), Count(first)) for name, (times, first) in seen.work.items()]
    if not rows:
        return []
    shown = [*rows[:MAX_SHOWN], *([(f"({len(rows) - MAX_SHOWN} more)", "", "")]
                                  if len(rows) > MAX_SHOWN else [])]
    return ["Functions that it calls, and how many of its instructions are executed before the "
            "first call of each:", Table(("function", "times", "first after"), tuple(shown))]


def changed_fields(seen: SeenEntry, words: Words) -> tuple[tuple[Value, ...], ...]:
    """Return (field, before, after) for each trap frame field that changed in the kernel."""
    rows = []
    for name, (offset, size) in words.guest.traps.trap_frame.fields.items():
        before, after = (int.from_bytes(content[offset : offset + size], "little")
                         for content in (seen.before, seen.after))
        if before != after:
            rows.append((name, before, after))
    return tuple(rows)


def leaving(seen: SeenEntry, words: Words) -> Step:
    """Return the step in which the kernel returns to the program."""
    rows = seen.leaving.rows[seen.leaving.boundary : -1]
    return Step("leaving", "The kernel returns to the program", (
        f"{len(rows)} instructions of assembly code, and of functions that it calls, load the "
        "registers from the trap frame; the last one returns to user mode:",
        executed(rows, words)))


def instructions(seen: SeenEntry) -> int:
    """Return the total number of instructions that were executed in the kernel."""
    return (len(seen.entry.rows) - 1) + seen.spent + len(seen.leaving.rows) - 1


def registers_behind(seen: SeenEntry) -> Table:
    """Return a table of the program's registers before the kernel entry and after the return."""
    first, last = seen.entry.rows[0], seen.leaving.rows[-1]
    rows = tuple((name, value, last.registers[name])
                 for name, value in first.registers.items())
    marked = frozenset(n for n, row in enumerate(rows) if row[1] != row[2])
    return Table(("register", "before", "after"), rows, marked)
