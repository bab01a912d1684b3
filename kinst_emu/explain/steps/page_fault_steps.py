"""The steps of a page fault, from what was recorded of it."""

from kinst_emu.explain.record.entry import SeenEntry
from kinst_emu.explain.record.page_fault import FaultRecorder, Mapping
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
from kinst_emu.explain.steps.step import Step, Table, Value
from kinst_emu.explain.steps.words import Words

WRITE, EXECUTE = 2, 4  # bits of vm_prot_t (sys/vm/vm.h)
RETURNED = (1 << 32) - 1  # an int


def fault_steps(found: FaultRecorder, words: Words) -> list[Step]:
    """A recorded page fault, step by step."""
    seen = found.seen
    return [_instruction(found, words), exception(seen, words), entry(seen, words),
            frame(seen, words), _dispatch(found, words), _work(found, words),
            _result(seen, words), leaving(seen, words), _after(found, words)]


def _access(found: FaultRecorder) -> str:
    return ("to execute" if found.access & EXECUTE else
            "to write" if found.access & WRITE else "to read")


def _instruction(found: FaultRecorder, words: Words) -> Step:
    seen = found.seen
    first, at = seen.entry.rows[0], f"{found.address:#x}"
    have = ("nothing for it" if found.before is None else
            f"{_described(found.before)}, which is not enough")
    if found.access & EXECUTE:
        wants = f"The instruction there is to be executed, and to be fetched for that from {at}"
    else:
        wants = (f"{words.arch.disassemble(first.code, first.address)} wants {_access(found)} "
                 f"{at}")
    return Step("instruction", "The program wants what it has not", (
        f"{who(seen)} is at {first.address:#x}, in user mode. {wants}. The page tables have "
        f"{have}.",
        *(("The program's code there:", program(seen, words)) if seen.code else ())))


def _described(mapping: Mapping) -> str:
    return (f"{mapping.physical:#x} of the machine's memory for it, to be "
            + ("read and written" if mapping.writable else "read only"))


def _dispatch(found: FaultRecorder, words: Words) -> Step:
    seen = found.seen
    rows = seen.entry.rows[seen.entry.boundary : -1]
    return Step("dispatch", "The kernel sees what it is", (
        f"{len(rows)} instructions of C look at the cause of the exception and at the address "
        f"that the CPU has left, and call {seen.function.name} with the program's map, "
        f"{found.address:#x}, and {found.access} ({_access(found)}). They go through:",
        functions(rows, words)))


def _work(found: FaultRecorder, words: Words) -> Step:
    seen = found.seen
    rows = [("before", *_row(found.before)), ("behind it", *_row(found.after))]
    returned = seen.leaving.rows[0].registers[words.arch.result] & RETURNED
    return Step("work", f"{seen.function.name} finds the page, and maps it"
                if found.after is not None else f"{seen.function.name} finds no page", (
        f"{seen.function.name}, {words.source(seen.function.address) or 'without a known line'}: "
        f"{seen.spent} instructions up to its return"
        + (", what other threads did meanwhile included." if seen.others else "."),
        *worked(seen), f"It returns {returned}. What the page tables have for {found.address:#x}:",
        Table(("", "in the machine's memory", "entry", "may be written"), tuple(rows))))


def _row(mapping: Mapping | None) -> tuple[Value, Value, str]:
    if mapping is None:
        return "nothing", "", ""
    return mapping.physical, mapping.entry, "yes" if mapping.writable else "no"


def _result(seen: SeenEntry, words: Words) -> Step:
    inside, changed = seen.leaving.rows[: seen.leaving.boundary], changed_fields(seen, words)
    return Step("result", "The trap frame stays as it is" if not changed else
                "The trap frame has changed", (
        f"{len(inside)} more instructions of C look whether there is something else to do before "
        "the program goes on (a signal, another thread). The trap frame "
        + ("is as it was: the program is to go on where it was." if not changed else
           "has changed in:"),
        *([Table(("field", "when the function was called", "when the program goes on"), changed)]
          if changed else []),
        "They go through:", functions(inside, words)))


def _after(found: FaultRecorder, words: Words) -> Step:
    seen = found.seen
    first, last = seen.entry.rows[0], seen.leaving.rows[-1]
    again = first.address == last.address
    title = "The program does it again" if again else "The program goes on elsewhere"
    return Step("after", title, (
        f"It is at {last.address:#x}, {instructions(seen)} instructions later: "
        + (f"the same instruction, {words.arch.disassemble(first.code, first.address)}; this time "
           "it finds what it wants. Of the fault the program has seen nothing."
           if again else "not where it was: the kernel has sent it elsewhere, as to a signal's "
           "handler."),
        registers_behind(seen)))
