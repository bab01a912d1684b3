"""Steps that explain a recorded page fault."""

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
RETURNED = (1 << 32) - 1  # mask for the bits of a returned int


def fault_steps(found: FaultRecorder, words: Words) -> list[Step]:
    """Return the steps of a recorded page fault."""
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
    have = ("do not map it" if found.before is None else
            f"map it to {_described(found.before)}, which is not enough")
    if found.access & EXECUTE:
        wants = f"The CPU tries to fetch and execute the instruction there, at {at}"
    else:
        wants = (f"{words.arch.disassemble(first.code, first.address)} tries {_access(found)} "
                 f"memory at {at}")
    return Step("instruction", "The page tables do not permit an access", (
        f"{who(seen)} is at {first.address:#x}, in user mode. {wants}. The page tables "
        f"{have}.",
        *(("The program's code around the instruction:", program(seen, words))
          if seen.code else ())))


def _described(mapping: Mapping) -> str:
    return (f"physical address {mapping.physical:#x}, for "
            + ("reading and writing" if mapping.writable else "reading only"))


def _dispatch(found: FaultRecorder, words: Words) -> Step:
    seen = found.seen
    rows = seen.entry.rows[seen.entry.boundary : -1]
    return Step("dispatch", "The kernel recognizes a page fault", (
        f"{len(rows)} instructions of C examine the cause of the exception and the address "
        f"that the CPU has saved, and call {seen.function.name} with the program's map, "
        f"{found.address:#x}, and {found.access} ({_access(found)}). The functions that run:",
        functions(rows, words)))


def _work(found: FaultRecorder, words: Words) -> Step:
    seen = found.seen
    rows = [("before", *_row(found.before)), ("after", *_row(found.after))]
    returned = seen.leaving.rows[0].registers[words.arch.result] & RETURNED
    return Step("work", f"{seen.function.name} finds the page and maps it"
                if found.after is not None else f"{seen.function.name} finds no page", (
        f"{seen.function.name} ({words.source(seen.function.address) or 'source line unknown'}): "
        f"{seen.spent} instructions until it returns"
        + (", including those of other threads that ran meanwhile." if seen.others else "."),
        *worked(seen), f"It returns {returned}. The page tables for {found.address:#x}:",
        Table(("", "physical address", "entry", "is writable"), tuple(rows))))


def _row(mapping: Mapping | None) -> tuple[Value, Value, str]:
    if mapping is None:
        return "not mapped", "", ""
    return mapping.physical, mapping.entry, "yes" if mapping.writable else "no"


def _result(seen: SeenEntry, words: Words) -> Step:
    inside, changed = seen.leaving.rows[: seen.leaving.boundary], changed_fields(seen, words)
    return Step("result", "The trap frame is unchanged" if not changed else
                "The trap frame has changed", (
        f"{len(inside)} more instructions of C check whether anything else is to be done before "
        "the program resumes (a signal, another thread). The trap frame "
        + ("is unchanged: the program will resume where it was." if not changed else
           "has changed in these fields:"),
        *([Table(("field", "when the function was called", "when the program resumes"), changed)]
          if changed else []),
        "The functions that run:", functions(inside, words)))


def _after(found: FaultRecorder, words: Words) -> Step:
    seen = found.seen
    first, last = seen.entry.rows[0], seen.leaving.rows[-1]
    again = first.address == last.address
    title = "The program repeats the instruction" if again else "The program resumes elsewhere"
    return Step("after", title, (
        f"It is at {last.address:#x}, {instructions(seen)} instructions later: "
        + (f"the same instruction, {words.arch.disassemble(first.code, first.address)}, whose "
           "access is permitted this time. The program has not noticed the fault."
           if again else "the kernel has sent it to another address, such as that of a signal "
           "handler."),
        registers_behind(seen)))
