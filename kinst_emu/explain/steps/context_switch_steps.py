"""The steps of a context switch, from what was recorded of it."""

from kinst_emu.explain.record.context_switch import SeenSwitch, SwitchedThread
from kinst_emu.explain.steps.entry_steps import executed, functions
from kinst_emu.explain.steps.step import Step, Table
from kinst_emu.explain.steps.words import Words


def switch_steps(seen: SeenSwitch, words: Words) -> list[Step]:
    """A recorded switch, step by step."""
    return [_call(seen, words), _save(seen, words), _space(seen, words), _load(seen, words),
            _after(seen, words)]


def saved(seen: SeenSwitch) -> int:
    """The number of the row behind the last store into what is kept of the old thread."""
    kept = set(seen.before.kept.values())
    return max((number for number, words in enumerate(seen.words)
                if 0 < number <= seen.loaded and kept & words.keys()), default=1)


def loading(seen: SeenSwitch) -> int:
    """The number of the row from which the other thread's registers are loaded: the stack pointer
    is among the first."""
    function = range(seen.function.address, seen.function.address + seen.function.size)
    outside = [number for number in range(saved(seen), seen.loaded)
               if seen.rows[number].address not in function]
    return max(outside, default=saved(seen) - 1) + 1


def _call(seen: SeenSwitch, words: Words) -> Step:
    first, arch = seen.rows[0], words.arch
    rows = tuple((name, first.registers[name], what) for name, what in (
        (arch.arguments[0], f"the thread that runs: {seen.before.named}"),
        (arch.arguments[1], f"the one that is to run: {seen.after.named}"),
        (arch.sp, "the stack of the first")))
    return Step("call", "One thread calls for the other", (
        f"{seen.before.named} is at {words.place(first.address)}. {_why(seen, words)} The calls on "
        "its stack, the last one first:",
        Table(("",), tuple((line,) for line in seen.before.stack)),
        "What the function is given:", Table(("register", "value", "what it is"), rows)))


def _why(seen: SeenSwitch, words: Words) -> str:
    interrupts = words.guest.traps.interrupts
    interrupted = any(name in line for line in seen.before.stack for name in interrupts)
    return ("An interrupt has come, and what runs behind it gives the CPU away." if interrupted else
            "It has called for that itself.")


def _kept(seen: SeenSwitch, thread: SwitchedThread, upto: int) -> dict[int, int]:
    """The words that are kept of a thread, before a row."""
    known: dict[int, int] = {}
    for words in seen.words[: upto + 1]:
        known |= words
    return {at: known[at] for at in thread.kept.values() if at in known}


def _save(seen: SeenSwitch, words: Words) -> Step:
    end = saved(seen)
    before, after = (_kept(seen, seen.before, number) for number in (0, end))
    rows = tuple((at, name, before[at], after[at])
                 for name in seen.names for at in [seen.before.kept[name]] if at in before)
    marked = frozenset(number for number, row in enumerate(rows) if row[2] != row[3])
    return Step("save", "Its registers are kept", (
        f"In {end} instructions is stored what a function must leave as it was, the stack pointer, "
        f"and where to go on, where the kernel keeps it of {seen.before.named}. The other "
        "registers need not be kept: who calls a function expects them to change.",
        executed(seen.rows[:end], words),
        "What is kept of it:",
        Table(("address", "register", "before", "now"), rows, marked)), end)


def _space(seen: SeenSwitch, words: Words) -> Step:
    begin, end = saved(seen), loading(seen)
    register = words.guest.programs.page_tables[1]
    old, new = seen.roots[begin], seen.roots[end]
    changes = old != new
    return Step("space", "Another address space" if changes else "The address space stays", (
        f"{end - begin} instructions see to what else belongs to a thread. Of its address space: "
        + (f"{register}, which leads to the page tables, was {old:#x} and is {new:#x}. The "
           "kernel's own part of it is the same in both: it goes on at the next instruction."
           if changes else
           f"{register}, which leads to the page tables, stays {old:#x}: both threads run in one "
           "address space, or the second has none of its own."),
        "They go through:", functions(seen.rows[begin:end], words)), end)


def _load(seen: SeenSwitch, words: Words) -> Step:
    begin, last = loading(seen), len(seen.rows) - 1
    first, now = seen.rows[begin].registers, seen.rows[last].registers
    kept = _kept(seen, seen.after, last)
    rows = tuple((name, first[name], now[name], kept.get(seen.after.kept[name], ""))
                 for name in seen.names if name in now)
    marked = frozenset(number for number, row in enumerate(rows) if row[1] != row[2])
    return Step("load", "The other one's registers", (
        f"In {last - begin} instructions is loaded what is kept of {seen.after.named}; from "
        f"{words.place(seen.rows[seen.loaded].address)} on it is its stack that is used. The last "
        "one is a return, as of any function: but to whom this thread is to return.",
        executed(seen.rows[begin:last], words),
        Table(("register", "before", "now", "was kept"), rows, marked)), last)


def _after(seen: SeenSwitch, words: Words) -> Step:
    last = seen.rows[-1]
    return Step("after", "The other thread goes on", (
        f"It is at {words.place(last.address)}, {len(seen.rows) - 1} instructions after the call, "
        f"in {seen.after.named}: where it once was switched from itself, or where a new one "
        "begins. The calls on its stack:",
        Table(("",), tuple((line,) for line in seen.after.stack))), len(seen.rows) - 1)
