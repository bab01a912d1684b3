"""Steps that explain one recorded firing, for pages, the terminal and plain text.

Every number in them is from the recording.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kinst.code.listing import ProbedInstruction
from kinst.relocation.verdict import summary
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.clause import Narration
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_firing import SeenFiring, SeenFrame
from kinst_emu.explain.steps.step import Count, Step, Table, Value
from kinst_emu.explain.steps.trampoline_step import trampoline_step
from kinst_emu.explain.steps.verdict_step import verdict_step
from kinst_emu.explain.steps.words import Words

PUSHED_BELOW = 4  # maximum number of trap frame words shown below a pushed word
WORD = 8  # size of a word in bytes
AROUND = 6  # number of instructions shown before and after the probed one
WHOLE = 24  # maximum number of instructions in a function that is shown as a whole
ARGUMENTS = re.compile(r"\barg[0-9]\b|\bargs\b")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def steps(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words) -> list[Step]:
    """Return the steps of a recorded firing."""
    result = [_function(firing, table, words), _patch(firing, words), _exception(firing, words)]
    seam = firing.frames[0].row if firing.frames else 1
    if firing.frames:
        result += [_vector("vector", "The kernel's vector builds a trap frame",
                           firing.rows[1:seam], words, seam - 1, _to_handler(firing, words)),
                   replace(_frame(firing.frames[0], words), handles=0)]
    handles = 0 if firing.frames else None
    result.append(replace(_lookup(firing, words, seam), handles=handles))
    if firing.narration is not None:
        result.append(replace(_clause(firing.narration, seam), handles=handles))
    result.append(replace(verdict_step(firing, table, words, seam), handles=handles))
    back = _back(firing, words)
    result += [*back[:1], *([trampoline_step(firing, words)] if firing.slot else []), *back[1:]]
    result.append(_after(firing, words))
    if firing.between:
        result.append(_returned(firing, words))
    return result


def _function(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words) -> Step:
    at = next(i for i, one in enumerate(table) if one.offset == firing.instruction.offset)
    short = len(table) <= WHOLE
    begin, end = (0, len(table)) if short else (max(0, at - AROUND), at + AROUND + 1)
    rows, last = list[tuple[Value, ...]](), ""
    for one in table[begin:end]:
        instruction = words.arch.disassemble(one.code, one.address)
        source = words.source(one.address)
        rows.append((Count(one.offset), one.code, instruction, summary(one.verdict), source,
                     words.text(one.address) if source != last else ""))
        last = source
    columns = 6 if any(row[5] for row in rows) else 5
    name = f"{firing.function.name}:{firing.instruction.offset}"
    return Step("function", f"The instruction at {name}", (
        f"{firing.function.name} begins at {firing.function.address:#x} and has "
        f"{firing.function.size} bytes. The instruction at {firing.instruction.address:#x} is "
        f"probed; this is the {_ordinal(firing.hit)} time that the CPU reaches it.",
        *_asked(firing.asked),
        Table(("offset", "bytes", "instruction", "verdict", "source", "source text")[:columns],
              tuple(row[:columns] for row in rows), frozenset({at - begin}))))


def _asked(place: ChosenPlace) -> Iterator[str]:
    """Yield a sentence about the firing of the chosen entry or return probe, if one was chosen."""
    if place.probe:
        among = (f", which covers {place.places} places in the kernel's code," if place.places > 1
                 else "")
        time = f"the {_ordinal(place.number)} time in this run"
        yield (f"{place.probe}{among} fires for {time} when the function that this one jumps to, "
               "by a tail call, has returned." if place.tail
               else f"Here {place.probe}{among} fires for {time}.")


def _ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else ends.get(number % 10, 'th')}"


def _patch(firing: SeenFiring, words: Words) -> Step:
    changed = sum(a != b for a, b in zip(firing.original, firing.patched, strict=True))
    length = words.arch.instruction_length(firing.patched) or len(firing.patched)
    text = words.arch.disassemble(firing.patched[:length], firing.instruction.address)
    return Step("patch", "The breakpoint overwrites the instruction", (
        f"Bytes changed by enabling the probe: {changed} of {len(firing.original)}.",
        Table(("", "bytes", "instruction"), (
            ("before", firing.original,
             words.arch.disassemble(firing.original, firing.instruction.address)),
            ("after", firing.patched, text)), frozenset({1}))))


def _differences(before: SeenInstruction, after: SeenInstruction) -> list[tuple[Value, ...]]:
    return [(name, before.registers[name], value)
            for name, value in after.registers.items() if before.registers[name] != value]


def _exception(firing: SeenFiring, words: Words) -> Step:
    first, second = firing.rows[0], firing.rows[1]
    saved = words.trap.saved
    parts: list[str | Table] = [
        f"The CPU executes the breakpoint at {first.address:#x} and takes an exception: the next "
        f"instruction is at {words.place(second.address)}. These registers have changed:",
        Table(("register", "at the breakpoint", "at the vector"),
              tuple(_differences(first, second)))]
    if firing.entry:
        parts.append(firing.entry)
    if firing.frames:
        frame, layout = firing.frames[0], words.guest.traps.trap_frame
        pushed = firing.memory.stacks[1].content if not words.trap.return_register else b""
        rows = []
        for number, (name, meaning) in enumerate(saved.items()):
            offset, size = layout.fields[name]
            later = int.from_bytes(frame.before[offset : offset + size], "little")
            word = pushed[WORD * number : WORD * (number + 1)]
            value = int.from_bytes(word, "little") if word else later
            rows.append((name, value, later, meaning))
        parts.append(_saved_address(firing, words))
        if all(row[1] == row[2] for row in rows):
            parts += ["Values that the CPU itself saves, as the trap frame shows them later:",
                      Table(("field", "value", "meaning"),
                            tuple((name, value, what) for name, value, _later, what in rows))]
        else:
            parts += ["Values that the CPU itself saves, and those that the kernel stores for them "
                      "in its trap frame:",
                      Table(("field", "saved", "in the trap frame", "meaning"),
                            tuple(rows))]
    return Step("exception", "The CPU takes the exception", tuple(parts), 1)


def _saved_address(firing: SeenFiring, words: Words) -> str:
    """Explain the address that the CPU saves for the exception."""
    bias, code = words.trap.guest_breakpoint.bias, firing.patched
    length = words.arch.instruction_length(code) or len(code)
    name = words.arch.disassemble(code[:length], firing.instruction.address)
    if not bias:
        return (f"The address that the CPU saves is that of {name} itself, not that of the "
                "instruction after it.")
    return (f"The address that the CPU saves is the one after {name}. The breakpoint has {bias} "
            f"byte{'s' if bias > 1 else ''}, whatever the length of the instruction that it "
            f"overwrites, so the saved address is always the breakpoint's address plus {bias}.")


def _vector(name: str, title: str, rows: Sequence[SeenInstruction], words: Words, row: int,
            *more: str
            ) -> Step:
    return Step(name, title, (f"{len(rows)} instructions are executed:", _executed(rows, words),
                              *more), row)


def _to_handler(firing: SeenFiring, words: Words) -> str:
    how = "calls" if words.trap.called else "jumps to"
    return (f"The last one {how} the handler, to which the kernel's pointer "
            f"{words.guest.traps.seam} leads. In a real kernel the handler is DTrace's; here it is "
            "this program, which "
            f"{'reads' if words.trap.kernel_effects else 'works on'} the frame.")


def _executed(rows: Sequence[SeenInstruction], words: Words) -> Table:
    return Table(("where", "instruction"), tuple(
        (words.where(row.address), words.arch.disassemble(row.code, row.address)) for row in rows))


def _fields(frame: SeenFrame, words: Words) -> Iterable[tuple[str, int, int, int, int]]:
    """Yield (name, address, size, value before the handler, value after) for each frame field."""
    for name, (offset, size) in words.guest.traps.trap_frame.fields.items():
        before, after = (int.from_bytes((content or frame.before)[offset : offset + size], "little")
                         for content in (frame.before, frame.after))
        yield name, frame.address + offset, size, before, after


def _frame(frame: SeenFrame, words: Words) -> Step:
    rows, marked = list[tuple[Value, ...]](), set[int]()
    for name, address, _size, before, after in _fields(frame, words):
        if before != after:
            marked.add(len(rows))
        rows.append((address, name, before, after if frame.after else ""))
    effects = words.trap.kernel_effects
    text = (f"The trap frame is at {frame.address:#x}. "
            + ("The handler reads it and leaves it unchanged; the kernel's own code will load "
               "the registers from it." if effects else
               f"The handler changes {len(marked)} of its words; the kernel's return path loads "
               "the registers from it." if frame.after else
               "The handler loads the interrupted registers from it and resumes with them."))
    heads = ("address", "field", "saved by the vector", "left by the handler")
    kept = 4 if frame.after and not effects else 3
    return Step("frame", "The trap frame", (
        text, Table(heads[:kept], tuple(row[:kept] for row in rows), frozenset(marked))),
        frame.row)


def _lookup(firing: SeenFiring, words: Words, row: int) -> Step:
    trap = words.trap
    pc = trap.frame.field(words.arch.pc)
    parts = []
    if firing.frames:
        offset, size = words.guest.traps.trap_frame.fields[pc]
        value = int.from_bytes(firing.frames[0].before[offset : offset + size], "little")
        bias = value - firing.frames[0].breakpoint
        parts.append(f"The frame's {pc} is {value:#x}. "
                     + (f"It is the breakpoint's address plus {bias}; the breakpoint is at "
                        if bias else "It is the breakpoint's address, ")
                     + f"{firing.frames[0].breakpoint:#x}.")
    clauses = ("its D clauses would run" if firing.narration is None
               else "its clause runs")
    parts.append(f"The probe at this address is number {firing.number + 1}: "
                 f"kinst::{firing.function.name}:{firing.instruction.offset}. It fires here: "
                 f"{clauses} now, with the registers of the frame.")
    return Step("lookup", "The handler looks up the address", tuple(parts), row)


def _clause(narration: Narration, row: int) -> Step:
    rows, lines = list[tuple[Value, ...]](), narration.text.splitlines()
    last_line = 0
    for one in narration.instructions:
        source = ""
        if one.line != last_line and 0 < one.line <= len(lines):
            source = lines[one.line - 1].strip()
        last_line = one.line
        rows.append((Count(one.place), one.text, one.effect(), source))
    parts: list[str | Table] = [
        f"{narration.text.strip()} is compiled to BPF; {narration.executed} instructions "
        "are executed, by the executor in Python"
        + (f"; the first {len(rows)}:" if len(rows) < narration.executed else ":")]
    if rows:
        parts.append(Table(("number", "BPF", "what it does", "line"), tuple(rows)))
    parts += [f"Output: {json.dumps(left)}" for left in narration.left]
    parts += [f"Aggregated so far: {json.dumps(one)}" for one in narration.aggregated]
    if not narration.left and not narration.aggregated:
        parts.append("The clause records nothing.")
    if ARGUMENTS.search(STRING.sub("", narration.text)):
        parts.append("A kinst probe has no arguments: arg0 and all following arguments are 0 in "
                     "its clauses. Use regs[] to read the registers.")
    return Step("clause", "The D clause is run", tuple(parts), row)


def _back(firing: SeenFiring, words: Words) -> list[Step]:
    """Return the steps between the handler and the instruction at which the run continues."""
    if not firing.frames:
        return []
    ends = [frame.row for frame in firing.frames[1:]] or [firing.last]
    rows = firing.rows[firing.frames[0].row : ends[0]]
    if not firing.frames[0].after:
        return [Step("return", "The handler resumes the run directly", (
            "It does not return to the vector: it loads the registers and the flags from the "
            f"frame and jumps to {firing.rows[firing.frames[0].row].address:#x}, as a return "
            "from the exception would.",), firing.frames[0].row)]
    if words.trap.kernel_effects:
        return [_vector("return", "The kernel does the work of the instruction and returns", rows,
                        words, firing.frames[0].row + len(rows) - 1)]
    slot = [i for i, row in enumerate(rows)
            if firing.slot <= row.address < firing.slot + len(firing.trampoline)]
    result = [_vector("return", "The kernel returns from the exception",
                      rows[: slot[0]] if slot and firing.slot else rows, words,
                      firing.frames[0].row + (slot[0] if slot and firing.slot else len(rows)) - 1)]
    if firing.second and len(firing.frames) > 1:
        second = firing.frames[1]
        entered = rows[slot[-1] + 1 :] if slot else []
        changed = [f"{name} from {before:#x} to {after:#x}"
                   for name, _a, _s, before, after in _fields(second, words) if before != after]
        result.append(Step("second", "The second breakpoint", (
            f"The displaced instruction is followed by another breakpoint, at {firing.second:#x}. "
            f"{len(entered)} instructions of the vector later there is a trap frame at "
            f"{second.address:#x} again, and the handler changes it so that the run continues "
            f"after the probed instruction: {'; '.join(changed)}.",
            _executed(firing.rows[second.row : firing.last], words)), second.row, 1))
    return result


def _after(firing: SeenFiring, words: Words) -> Step:
    first, last, ended = firing.rows[0], firing.rows[firing.last], firing.mistake.ended
    rows, marked = list[tuple[Value, ...]](), set[int]()
    for name, value in first.registers.items():
        now = last.registers[name]
        if now != value:
            marked.add(len(rows))
        rows.append((name, value, now))
    return Step("after", "The run continues as if nothing had happened", (
        f"The next instruction is at {words.place(last.address)}. The registers are as the "
        "instruction at its original address would have left them:",
        Table(("register", "before", "after"), tuple(rows), frozenset(marked)),
        *_pushed(firing, words),
        *([f"The call failed later: {ended}."] if ended else [])),
        firing.last)


def _returned(firing: SeenFiring, words: Words) -> Step:
    """Return the step in which the probe fires when the callee of a tail call has returned."""
    jump, gone, back = firing.rows[0], firing.rows[firing.last], firing.rows[-1]
    sp, result = words.arch.sp, words.arch.result
    source = ("The word on top of the stack" if words.arch.link is None
              else f"The link register, {words.arch.link},")
    return Step("returned", f"{firing.asked.probe} fires", (
        f"{firing.function.name} has left by a tail call: {words.where(gone.address)} will return "
        f"to {firing.function.name}'s caller. {source} holds the return address: "
        f"{words.place(back.address)}. At the breakpoint, the handler records this address and the "
        f"stack pointer after the return, {sp} {back.registers[sp]:#x}. It writes no breakpoint "
        "there: the machine itself watches for both.",
        f"{firing.between} instructions later the run reaches that address with that stack "
        f"pointer, and the probe fires. {result}, the register for results, is "
        f"{back.registers[result]:#x}.",
        Table(("register", "at the tail call", "at the return"),
              tuple(_differences(jump, back)))), len(firing.rows) - 1)


def _pushed(firing: SeenFiring, words: Words) -> Iterator[str | Table]:
    """Yield a description of the word pushed by an emulated call, and a table of the stack."""
    stores = firing.memory.stores.get(firing.last, ())
    if firing.slot or not firing.frames or len(stores) != 1 or stores[0].address is None:
        return
    at, frame, sp = stores[0].address, firing.frames[0], words.arch.sp
    top, value = firing.rows[0].registers[sp], int.from_bytes(stores[0].after, "little")
    what = ("The return address" if value == firing.instruction.address
            + len(firing.instruction.code) else "The pushed value")
    where = (f"{what}, {value:#x}, is stored at {at:#x}, {top - at} bytes below the stack pointer "
             "of the function.")
    if frame.address <= at < frame.address + len(frame.before):
        yield (f"{where} Until now, this word was part of the trap frame, among those that the CPU "
               "has saved. The handler has loaded the registers from the frame, restored the "
               "memory that the trap had overwritten, and then stored this word. FreeBSD's own "
               "kernel returns through the frame, so it first moves the saved words down by 16 "
               "bytes to make room.")
    else:
        yield (f"{where} The CPU aligned the stack to 16 bytes before it saved its words, so that "
               "this word is above the trap frame and overwrites nothing of it.")
    before, after = dict(firing.memory.words.get(0, {})), dict[int, int]()
    for number in range(firing.last + 1):
        after |= firing.memory.words.get(number, {})
    rows, marked = list[tuple[Value, ...]](), set[int]()
    for address in range(at - PUSHED_BELOW * WORD, top, WORD):
        inside = address - frame.address
        if inside < 0 or address not in before:
            continue
        trapped = (int.from_bytes(frame.before[inside : inside + WORD], "little")
                   if inside + WORD <= len(frame.before) else before[address])
        if address == at:
            marked.add(len(rows))
        rows.append((address, before[address], trapped, after.get(address, before[address])))
    yield Table(("address", "before", "with the trap frame", "after"), tuple(rows),
                frozenset(marked))
