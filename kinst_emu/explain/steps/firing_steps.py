"""The steps of one firing, from what was recorded: what a page, a terminal and plain text show.

Every number in them is the recording's.
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

PUSHED_BELOW = 4  # words of the frame that are shown below what is pushed
WORD = 8
AROUND = 6  # instructions before and behind the probed one
WHOLE = 24  # instructions of a function that is shown whole
ARGUMENTS = re.compile(r"\barg[0-9]\b|\bargs\b")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def steps(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words) -> list[Step]:
    """A recorded firing, step by step."""
    made = [_function(firing, table, words), _patch(firing, words), _exception(firing, words)]
    seam = firing.frames[0].row if firing.frames else 1
    if firing.frames:
        made += [_vector("vector", "The kernel's vector builds a trap frame",
                         firing.rows[1:seam], words, seam - 1, _to_handler(firing, words)),
                 replace(_frame(firing.frames[0], words), handles=0)]
    handles = 0 if firing.frames else None
    made.append(replace(_lookup(firing, words, seam), handles=handles))
    if firing.narration is not None:
        made.append(replace(_clause(firing.narration, seam), handles=handles))
    made.append(replace(verdict_step(firing, table, words, seam), handles=handles))
    back = _back(firing, words)
    made += [*back[:1], *([trampoline_step(firing, words)] if firing.slot else []), *back[1:]]
    made.append(_after(firing, words))
    if firing.between:
        made.append(_returned(firing, words))
    return made


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
        f"{firing.function.size} bytes. The instruction at {firing.instruction.address:#x} is to "
        f"be probed; this is the {_ordinal(firing.hit)} time that the CPU reaches it.",
        *_asked(firing.asked),
        Table(("offset", "bytes", "instruction", "verdict", "source", "its text")[:columns],
              tuple(row[:columns] for row in rows), frozenset({at - begin}))))


def _asked(place: ChosenPlace) -> Iterator[str]:
    """Of an entry or a return: why it is this instruction."""
    if place.probe:
        among = (f", which has {place.places} places in the kernel's code," if place.places > 1
                 else "")
        time = f"the {_ordinal(place.number)} time in this run"
        yield (f"{place.probe}{among} fires for {time} when the function that this one goes to, by "
               "a tail call, has returned." if place.tail
               else f"Here {place.probe}{among} fires for {time}.")


def _ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else ends.get(number % 10, 'th')}"


def _patch(firing: SeenFiring, words: Words) -> Step:
    changed = sum(a != b for a, b in zip(firing.original, firing.patched, strict=True))
    length = words.arch.instruction_length(firing.patched) or len(firing.patched)
    text = words.arch.disassemble(firing.patched[:length], firing.instruction.address)
    return Step("patch", "The breakpoint is written over it", (
        f"Enabling the probe changes {changed} of its {len(firing.original)} bytes.",
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
        f"The CPU comes to the breakpoint at {first.address:#x}, and takes an exception: the next "
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
            parts += ["What the CPU itself has saved, as the trap frame has it later:",
                      Table(("field", "value", "what it is"),
                            tuple((name, value, what) for name, value, _later, what in rows))]
        else:
            parts += ["What the CPU itself has saved, and what the kernel makes of it in its trap "
                      "frame:", Table(("field", "saved", "in the trap frame", "what it is"),
                                      tuple(rows))]
    return Step("exception", "The CPU takes the exception", tuple(parts), 1)


def _saved_address(firing: SeenFiring, words: Words) -> str:
    """Which address the CPU saves, and why."""
    bias, code = words.trap.guest_breakpoint.bias, firing.patched
    length = words.arch.instruction_length(code) or len(code)
    name = words.arch.disassemble(code[:length], firing.instruction.address)
    if not bias:
        return (f"As the address where it was, the CPU saves that of {name} itself, not the one "
                "behind it.")
    return (f"As the address where it was, the CPU saves the one behind {name}. That has {bias} "
            f"byte{'s' if bias > 1 else ''}, however long the instruction is that it was written "
            f"over: it is always the breakpoint's address and {bias}.")


def _vector(name: str, title: str, rows: Sequence[SeenInstruction], words: Words, row: int,
            *more: str
            ) -> Step:
    return Step(name, title, (f"{len(rows)} instructions are executed:", _executed(rows, words),
                              *more), row)


def _to_handler(firing: SeenFiring, words: Words) -> str:
    how = "calls" if words.trap.called else "jumps to"
    return (f"The last of them {how} what the kernel's pointer {words.guest.traps.seam} leads to: "
            "the handler. In a real kernel that is DTrace's; here it is this program, which "
            f"{'looks at' if words.trap.kernel_effects else 'works on'} the frame.")


def _executed(rows: Sequence[SeenInstruction], words: Words) -> Table:
    return Table(("where", "instruction"), tuple(
        (words.where(row.address), words.arch.disassemble(row.code, row.address)) for row in rows))


def _fields(frame: SeenFrame, words: Words) -> Iterable[tuple[str, int, int, int, int]]:
    """(field, address, bytes, value, value afterwards)."""
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
            + ("The handler looks at it, and leaves it as it is; the kernel's own code will take "
               "the registers from it." if effects else
               f"The handler changes {len(marked)} of its words; the kernel's return path takes "
               "the registers from it." if frame.after else
               "The handler takes the interrupted registers from it, and goes on with them."))
    heads = ("address", "field", "as the vector has saved it", "as the handler leaves it")
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
                     + (f"It is {bias} after the breakpoint, whose address is then "
                        if bias else "It is the breakpoint's address, ")
                     + f"{firing.frames[0].breakpoint:#x}.")
    clauses = ("D clauses on it would be run" if firing.narration is None
               else "its clause is run")
    parts.append(f"The probe on that address is number {firing.number + 1}: "
                 f"kinst::{firing.function.name}:{firing.instruction.offset}. It fires here: "
                 f"{clauses} now, on the registers of the frame.")
    return Step("lookup", "The handler looks the address up", tuple(parts), row)


def _clause(narration: Narration, row: int) -> Step:
    rows, lines = list[tuple[Value, ...]](), narration.text.splitlines()
    said = 0
    for one in narration.instructions:
        source = ""
        if one.line != said and 0 < one.line <= len(lines):
            source = lines[one.line - 1].strip()
        said = one.line
        rows.append((Count(one.place), one.text, one.effect(), source))
    parts: list[str | Table] = [
        f"{narration.text.strip()} was compiled to BPF; {narration.executed} instructions of it "
        "are executed, by the executor in Python"
        + (f"; the first {len(rows)}:" if len(rows) < narration.executed else ":")]
    if rows:
        parts.append(Table(("number", "BPF", "what it does", "line"), tuple(rows)))
    parts += [f"It leaves: {json.dumps(left)}" for left in narration.left]
    parts += [f"Aggregated by now: {json.dumps(one)}" for one in narration.aggregated]
    if not narration.left and not narration.aggregated:
        parts.append("It records nothing.")
    if ARGUMENTS.search(STRING.sub("", narration.text)):
        parts.append("At an instruction there are no arguments: arg0 and those behind it are 0 in "
                     "a clause of a kinst probe. The registers are regs[].")
    return Step("clause", "The D clause is run", tuple(parts), row)


def _back(firing: SeenFiring, words: Words) -> list[Step]:
    """From the handler to where the run goes on."""
    if not firing.frames:
        return []
    ends = [frame.row for frame in firing.frames[1:]] or [firing.last]
    rows = firing.rows[firing.frames[0].row : ends[0]]
    if not firing.frames[0].after:
        return [Step("return", "The handler goes on directly", (
            "It does not return into the vector: it sets the registers and the flags as the frame "
            f"has them, and goes to {firing.rows[firing.frames[0].row].address:#x}, as a return "
            "from the exception would.",), firing.frames[0].row)]
    if words.trap.kernel_effects:
        return [_vector("return", "The kernel does what the instruction would, and returns", rows,
                        words, firing.frames[0].row + len(rows) - 1)]
    slot = [i for i, row in enumerate(rows)
            if firing.slot <= row.address < firing.slot + len(firing.trampoline)]
    made = [_vector("return", "The kernel returns from the exception",
                    rows[: slot[0]] if slot and firing.slot else rows, words,
                    firing.frames[0].row + (slot[0] if slot and firing.slot else len(rows)) - 1)]
    if firing.second and len(firing.frames) > 1:
        second = firing.frames[1]
        entered = rows[slot[-1] + 1 :] if slot else []
        changed = [f"{name}: {before:#x}, then {after:#x}"
                   for name, _a, _s, before, after in _fields(second, words) if before != after]
        made.append(Step("second", "The second breakpoint", (
            f"After the displaced instruction, at {firing.second:#x}, is another breakpoint. "
            f"{len(entered)} instructions of the vector later a trap frame is at "
            f"{second.address:#x} again, and the handler changes it so that the run goes on after "
            f"the probed instruction: {'; '.join(changed)}.",
            _executed(firing.rows[second.row : firing.last], words)), second.row, 1))
    return made


def _after(firing: SeenFiring, words: Words) -> Step:
    first, last, ended = firing.rows[0], firing.rows[firing.last], firing.mistake.ended
    rows, marked = list[tuple[Value, ...]](), set[int]()
    for name, value in first.registers.items():
        now = last.registers[name]
        if now != value:
            marked.add(len(rows))
        rows.append((name, value, now))
    return Step("after", "The run goes on as if nothing had happened", (
        f"At {words.place(last.address)}, with the registers as the instruction "
        "at its own place would have left them:",
        Table(("register", "before", "after"), tuple(rows), frozenset(marked)),
        *_pushed(firing, words),
        *([f"The call ended badly later: {ended}."] if ended else [])),
        firing.last)


def _returned(firing: SeenFiring, words: Words) -> Step:
    """Of a tail call that is a return: where the probe fires."""
    jump, gone, back = firing.rows[0], firing.rows[firing.last], firing.rows[-1]
    sp, result = words.arch.sp, words.arch.result
    told = ("The word on top of the stack" if words.arch.link is None
            else f"The link register, {words.arch.link},")
    return Step("returned", f"{firing.asked.probe} fires", (
        f"{firing.function.name} has left by a tail call: {words.where(gone.address)} will return "
        f"to {firing.function.name}'s caller. {told} says where that is: "
        f"{words.place(back.address)}. The handler notes this place at the breakpoint, and the "
        f"stack pointer after the return, {sp} {back.registers[sp]:#x}. No breakpoint is written "
        "there: the machine itself watches for the two.",
        f"{firing.between} instructions later control is there, and the probe fires. "
        f"{result}, where functions leave their results, is {back.registers[result]:#x}.",
        Table(("register", "at the tail call", "at the return"),
              tuple(_differences(jump, back)))), len(firing.rows) - 1)


def _pushed(firing: SeenFiring, words: Words) -> Iterator[str | Table]:
    """Where a call's return address has been stored: where the trap frame was."""
    stores = firing.memory.stores.get(firing.last, ())
    if firing.slot or not firing.frames or len(stores) != 1 or stores[0].address is None:
        return
    at, frame, sp = stores[0].address, firing.frames[0], words.arch.sp
    top, value = firing.rows[0].registers[sp], int.from_bytes(stores[0].after, "little")
    what = ("The return address" if value == firing.instruction.address
            + len(firing.instruction.code) else "What it pushes")
    where = (f"{what}, {value:#x}, is stored at {at:#x}, {top - at} below the stack pointer of the "
             "function.")
    if frame.address <= at < frame.address + len(frame.before):
        yield (f"{where} The trap frame was there until now: the words that the CPU has saved. The "
               "handler has taken the registers out of the frame, put back what the trap has "
               "stored, and then stored this word. FreeBSD's own kernel returns by the frame: it "
               "moves these words down by 16 bytes first, so that the word has a place.")
    else:
        yield (f"{where} The CPU has aligned the stack to 16 bytes before it saved its words, so "
               "that this one is above the trap frame, and nothing was in its way.")
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
