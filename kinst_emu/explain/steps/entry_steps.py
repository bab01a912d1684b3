"""What the steps of all ways into the kernel have in common."""

from collections.abc import Sequence
from itertools import groupby

from kinst_emu.explain.record.entry import SeenEntry
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.steps.step import Count, Step, Table, Value
from kinst_emu.explain.steps.words import Words

MAX_SHOWN = 60  # rows of a table of functions


def who(seen: SeenEntry) -> str:
    return f"{seen.process} (process {seen.pid})"


def program(seen: SeenEntry, words: Words) -> Table:
    """Its code around the instruction."""
    first = seen.entry.rows[0]
    rows, marked = list[tuple[Value, ...]](), set[int]()
    place = seen.code_at
    for one in words.arch.split(seen.code):
        length = words.arch.instruction_length(one)
        if not length or length > len(one):
            break
        if place == first.address:
            marked.add(len(rows))
        rows.append((place, one, words.arch.disassemble(one, place)))
        place += len(one)
    return Table(("address", "bytes", "instruction"), tuple(rows), frozenset(marked))


def exception(seen: SeenEntry, words: Words) -> Step:
    first, second = seen.entry.rows[0], seen.entry.rows[1]
    return Step("exception", "The CPU enters the kernel", (
        f"The next instruction is the kernel's, at {words.place(second.address)}. These registers "
        "have changed; the rest are still the program's:",
        Table(("register", "in the program", "in the kernel"), _changed(first, second))))


def _changed(before: SeenInstruction, after: SeenInstruction) -> tuple[tuple[Value, ...], ...]:
    return tuple((name, before.registers[name], value)
                 for name, value in after.registers.items() if before.registers[name] != value)


def executed(rows: Sequence[SeenInstruction], words: Words) -> Table:
    return Table(("where", "instruction", "source"), tuple(
        (words.where(row.address), words.arch.disassemble(row.code, row.address),
         words.source(row.address)) for row in rows))


def entry(seen: SeenEntry, words: Words) -> Step:
    rows = seen.entry.rows[1 : seen.entry.boundary]
    handler = words.where(seen.entry.rows[seen.entry.boundary].address).partition("+")[0]
    return Step("entry", "The kernel saves the program's registers", (
        f"{len(rows)} instructions, of assembly and of what it calls, take a stack of the "
        f"kernel's, build a trap frame on it, and call {handler}:",
        executed(rows, words)))


def frame(seen: SeenEntry, words: Words) -> Step:
    rows = tuple((seen.frame + offset, name,
                  int.from_bytes(seen.before[offset : offset + size], "little"))
                 for name, (offset, size) in words.guest.traps.trap_frame.fields.items())
    return Step("frame", "The trap frame", (
        f"It is at {seen.frame:#x}: what the program had in its registers, and where it goes on.",
        Table(("address", "field", "value"), rows)))


def functions(rows: Sequence[SeenInstruction], words: Words) -> Table:
    """One row for each stay in a function."""
    found = [(name, len(list(some))) for name, some in groupby(
        rows, key=lambda row: words.where(row.address).partition("+")[0])]
    shown: list[tuple[Value, ...]] = [(name, Count(count)) for name, count in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append((f"({len(found) - MAX_SHOWN} more)", ""))
    return Table(("function", "instructions"), tuple(shown))


def worked(seen: SeenEntry) -> list[str | Table]:
    """The functions that are entered, if any."""
    rows: list[tuple[Value, ...]] = [
        (name, Count(times), Count(first)) for name, (times, first) in seen.work.items()]
    if not rows:
        return []
    shown = [*rows[:MAX_SHOWN], *([(f"({len(rows) - MAX_SHOWN} more)", "", "")]
                                  if len(rows) > MAX_SHOWN else [])]
    return ["The functions that it enters, and how many instructions it has executed when each is "
            "entered first:", Table(("function", "times", "first after"), tuple(shown))]


def changed_fields(seen: SeenEntry, words: Words) -> tuple[tuple[Value, ...], ...]:
    """Of the trap frame, from when the function is called to when the program goes on."""
    rows = []
    for name, (offset, size) in words.guest.traps.trap_frame.fields.items():
        before, after = (int.from_bytes(content[offset : offset + size], "little")
                         for content in (seen.before, seen.after))
        if before != after:
            rows.append((name, before, after))
    return tuple(rows)


def leaving(seen: SeenEntry, words: Words) -> Step:
    rows = seen.leaving.rows[seen.leaving.boundary : -1]
    return Step("leaving", "The kernel returns to the program", (
        f"{len(rows)} instructions, of assembly and of what it calls, take the registers from the "
        "trap frame; the last of them goes to user mode:", executed(rows, words)))


def instructions(seen: SeenEntry) -> int:
    """Of the kernel, all in all."""
    return (len(seen.entry.rows) - 1) + seen.spent + len(seen.leaving.rows) - 1


def registers_behind(seen: SeenEntry) -> Table:
    first, last = seen.entry.rows[0], seen.leaving.rows[-1]
    rows = tuple((name, value, last.registers[name])
                 for name, value in first.registers.items())
    marked = frozenset(n for n, row in enumerate(rows) if row[1] != row[2])
    return Table(("register", "before it", "behind it"), rows, marked)
