"""Steps that explain a recorded context switch."""

from kinst_emu.explain.record.context_switch import SeenSwitch, SwitchedThread
from kinst_emu.explain.steps.entry_steps import executed, functions
from kinst_emu.explain.steps.step import Step, Table
from kinst_emu.explain.steps.words import Words


def switch_steps(seen: SeenSwitch, words: Words) -> list[Step]:
    """Return the steps of a recorded context switch."""
    return [_call(seen, words), _save(seen, words), _space(seen, words), _load(seen, words),
            _after(seen, words)]


def saved(seen: SeenSwitch) -> int:
    """Return the number of the row after the last store to the old thread's saved registers."""
    kept = set(seen.before.kept.values())
    return max((number for number, words in enumerate(seen.words)
                if 0 < number <= seen.loaded and kept & words.keys()), default=1)


def loading(seen: SeenSwitch) -> int:
    """Return the number of the row at which the kernel starts to load the new thread's registers.

    The stack pointer is among the first registers that are loaded.
    """
    function = range(seen.function.address, seen.function.address + seen.function.size)
    outside = [number for number in range(saved(seen), seen.loaded)
               if seen.rows[number].address not in function]
    return max(outside, default=saved(seen) - 1) + 1


def _call(seen: SeenSwitch, words: Words) -> Step:
    first, arch = seen.rows[0], words.arch
    rows = tuple((name, first.registers[name], what) for name, what in (
        (arch.arguments[0], f"the old thread: {seen.before.named}"),
        (arch.arguments[1], f"the new thread: {seen.after.named}"),
        (arch.sp, "stack of the old thread")))
    return Step("call", "The old thread calls the switch function", (
        f"{seen.before.named} is at {words.place(first.address)}. {_why(seen, words)} Its call "
        "stack, innermost call first:",
        Table(("",), tuple((line,) for line in seen.before.stack)),
        "Arguments of the function:", Table(("register", "value", "meaning"), rows)))


def _why(seen: SeenSwitch, words: Words) -> str:
    interrupts = words.guest.traps.interrupts
    interrupted = any(name in line for line in seen.before.stack for name in interrupts)
    return ("An interrupt has occurred, and the kernel gives the CPU to another thread after it."
            if interrupted else "The thread itself has asked for the switch.")


def _kept(seen: SeenSwitch, thread: SwitchedThread, upto: int) -> dict[int, int]:
    """Return the thread registers that were saved before row ``upto``, keyed by address."""
    values: dict[int, int] = {}
    for words in seen.words[: upto + 1]:
        values |= words
    return {at: values[at] for at in thread.kept.values() if at in values}


def _save(seen: SeenSwitch, words: Words) -> Step:
    end = saved(seen)
    before, after = (_kept(seen, seen.before, number) for number in (0, end))
    rows = tuple((at, name, before[at], after[at])
                 for name in seen.names for at in [seen.before.kept[name]] if at in before)
    marked = frozenset(number for number, row in enumerate(rows) if row[2] != row[3])
    return Step("save", "The old thread's registers are saved", (
        f"{end} instructions store the callee-saved registers, the stack pointer and the address "
        f"where to resume in the kernel's save area for {seen.before.named}. The other registers "
        "need not be saved: the caller of a function expects them to change.",
        executed(seen.rows[:end], words),
        "The saved registers:",
        Table(("address", "register", "before", "now"), rows, marked)), end)


def _space(seen: SeenSwitch, words: Words) -> Step:
    begin, end = saved(seen), loading(seen)
    register = words.guest.programs.page_tables[1]
    old, new = seen.roots[begin], seen.roots[end]
    changes = old != new
    return Step("space", "The address space changes" if changes else "The address space stays", (
        f"{end - begin} instructions switch the rest of a thread's state, such as its address "
        "space. "
        + (f"{register}, which holds the root of the page tables, changes from {old:#x} to "
           f"{new:#x}. Both address spaces map the kernel alike, so execution continues at the "
           "next instruction."
           if changes else
           f"{register}, which holds the root of the page tables, stays {old:#x}: both threads "
           "share an address space, or the new thread has none of its own."),
        "The functions that run:", functions(seen.rows[begin:end], words)), end)


def _load(seen: SeenSwitch, words: Words) -> Step:
    begin, last = loading(seen), len(seen.rows) - 1
    first, now = seen.rows[begin].registers, seen.rows[last].registers
    kept = _kept(seen, seen.after, last)
    rows = tuple((name, first[name], now[name], kept.get(seen.after.kept[name], ""))
                 for name in seen.names if name in now)
    marked = frozenset(number for number, row in enumerate(rows) if row[1] != row[2])
    return Step("load", "The new thread's registers are loaded", (
        f"{last - begin} instructions load the saved registers of {seen.after.named}; from "
        f"{words.place(seen.rows[seen.loaded].address)} on, its stack is used. The last "
        "instruction is a return, as in any function, but to the new thread's caller.",
        executed(seen.rows[begin:last], words),
        Table(("register", "before", "now", "saved value"), rows, marked)), last)


def _after(seen: SeenSwitch, words: Words) -> Step:
    last = seen.rows[-1]
    return Step("after", "The new thread continues", (
        f"It is at {words.place(last.address)}, {len(seen.rows) - 1} instructions after the call, "
        f"in {seen.after.named}: where it was once switched out, or where a newly created thread "
        "begins. Its call stack:",
        Table(("",), tuple((line,) for line in seen.after.stack))), len(seen.rows) - 1)
