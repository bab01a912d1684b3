"""The steps of an explanation, from what was recorded: what a page, a terminal and plain text show.

A step is data: nothing in it is formatted for one of them.  Every number in it is the recording's.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

from emu.arch.arch import Arch
from emu.guest.guest import Guest
from emu.guest.hole import LARGE
from kinst.code.listing import ProbedInstruction
from kinst.relocation.trap import GuestTrap, trap_of
from kinst.relocation.verdict import Copy, Refuse, Rewrite, Verdict, summary
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.clause import Narration
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_firing import SeenFiring, SeenFrame, SeenStore
from kinst_emu.explain.record.what_if import COPY, SHARE

MASK = (1 << 64) - 1
STACK = 16384  # bytes: the most of a stack
CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
PUSHED_BELOW = 4  # words of the frame that are shown below what is pushed
WORD = 8
ADDRESS = 10_000  # numbers from here on are shown as hexadecimal
AROUND = 6  # instructions before and behind the probed one
EXAMPLES = 2  # of a verdict
WHOLE = 24  # instructions of a function that is shown whole


@dataclass(frozen=True)
class Table:
    """:param marked: numbers of the rows that the text is about: what has changed."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Step:
    """:param name: one word, to go to it by.
    :param row: the number of the recorded row that the machine is at then.
    :param handles: the number of the trap frame whose handler has been called then; None: an
        instruction of the kernel is about to be executed.
    :param wrong: whether it is the firing that was done wrong.
    """

    name: str
    title: str
    parts: tuple[str | Table, ...]
    row: int = 0
    handles: int | None = None
    wrong: bool = False


VERDICTS = {
    "copy": ("does the same anywhere", "is executed in a trampoline"),
    "rewrite": ("names a place by its distance",
                "is executed there, written so that it means the same"),
    "emulate": ("would do something else there, like saying where to go on",
                "is carried out on the saved registers"),
    "refuse": ("has to do with exceptions, or is broken by one", "is not probed")}
ARGUMENTS = re.compile(r"\barg[0-9]\b|\bargs\b")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# Steps that a firing which is done wrong has, too.
SAME = ("function", "patch", "exception", "vector", "frame", "lookup", "clause", "verdict")


@dataclass(frozen=True)
class Words:
    """How places are spoken of.

    :param where: an address, as ``function+offset``.
    :param source: its ``file:line``; empty where nothing is known.
    :param text: that line itself; empty where its file is not here.
    :param variable: of an address, the variable of the kernel that lies there; empty: none.
    """

    arch: Arch
    guest: Guest
    where: Callable[[int], str]
    source: Callable[[int], str]
    text: Callable[[int], str] = lambda address: ""
    variable: Callable[[int], str] = lambda address: ""

    @property
    def trap(self) -> GuestTrap:
        """The host's half of its breakpoints."""
        return trap_of(self.guest, self.arch.name)

    def place(self, address: int) -> str:
        """An address, and what stands there."""
        name = self.where(address)
        return f"{address:#x}" if name == f"{address:#x}" else f"{address:#x}, {name}"


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
    made.append(replace(_verdict(firing, table, words, seam), handles=handles))
    back = _back(firing, words)
    made += [*back[:1], *([_trampoline(firing, words)] if firing.slot else []), *back[1:]]
    made.append(_after(firing, words))
    if firing.between:
        made.append(_returned(firing, words))
    return made


def _hex(data: bytes) -> str:
    return data.hex(" ")


def _function(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words) -> Step:
    at = next(i for i, one in enumerate(table) if one.offset == firing.instruction.offset)
    short = len(table) <= WHOLE
    begin, end = (0, len(table)) if short else (max(0, at - AROUND), at + AROUND + 1)
    rows, last = list[tuple[str, ...]](), ""
    for one in table[begin:end]:
        instruction = words.arch.disassemble(one.code, one.address)
        source = words.source(one.address)
        rows.append((str(one.offset), _hex(one.code), instruction, summary(one.verdict), source,
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
            ("before", _hex(firing.original),
             words.arch.disassemble(firing.original, firing.instruction.address)),
            ("after", _hex(firing.patched), text)), frozenset({1}))))


def _differences(before: SeenInstruction, after: SeenInstruction) -> list[tuple[str, str, str]]:
    return [(name, f"{before.registers[name]:#x}", f"{value:#x}")
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
            rows.append((name, f"{value:#x}", f"{later:#x}", meaning))
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
            f"{'looks at' if words.trap.told else 'works on'} the frame.")


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
    rows, marked = list[tuple[str, ...]](), set[int]()
    for name, address, _size, before, after in _fields(frame, words):
        if before != after:
            marked.add(len(rows))
        rows.append((f"{address:#x}", name, f"{before:#x}", f"{after:#x}" if frame.after else ""))
    told = words.trap.told
    text = (f"The trap frame is at {frame.address:#x}. "
            + ("The handler looks at it, and leaves it as it is; the kernel's own code will take "
               "the registers from it." if told else
               f"The handler changes {len(marked)} of its words; the kernel's return path takes "
               "the registers from it." if frame.after else
               "The handler takes the interrupted registers from it, and goes on with them."))
    heads = ("address", "field", "as the vector has saved it", "as the handler leaves it")
    kept = 4 if frame.after and not told else 3
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
    rows, lines = list[tuple[str, ...]](), narration.text.splitlines()
    said = 0
    for one in narration.instructions:
        source = ""
        if one.line != said and 0 < one.line <= len(lines):
            source = lines[one.line - 1].strip()
        said = one.line
        rows.append((str(one.place), one.text, one.told(), source))
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


def _verdict(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words, row: int
             ) -> Step:
    verdict, code = firing.instruction.verdict, firing.instruction.code
    word = summary(verdict)
    text = words.arch.disassemble(code, firing.instruction.address)
    if words.trap.told:
        answer = words.trap.told[code].answer
        why = (f"This kernel has no trampoline for it: the handler answers {answer}, by which the "
               "vectors know that it was this instruction, and do what it does themselves.")
    elif isinstance(verdict, Copy):
        why = ("Nothing in it depends on where it is: it is copied, and executed elsewhere as "
               "it is.")
    elif isinstance(verdict, Rewrite):
        why = ("It says where something is by the distance from itself: it is rewritten, so "
               "that it means the same from the trampoline.")
    else:
        why = ("It decides where the run goes on, gives its own address, or changes what the "
               "exception has saved: a copy elsewhere would not do that. Its effect is carried out "
               "on the saved registers, and there is no trampoline.")
    parts: list[str | Table] = [f"{text}: {word}. {why}"]
    if not isinstance(verdict, Copy | Rewrite) and not words.trap.told:
        parts.append(f"What is carried out, as this program has it: {_told(verdict)}.")
    if not words.trap.told:
        parts += ["Of each instruction one of four things becomes; those with an offset are of "
                  "this function:", _verdicts(word, firing, table, words),
                  "Why one is refused:", _refusals(firing, words)]
    return Step("verdict", f"The verdict: {word}", tuple(parts), row)


def _verdicts(word: str, firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words
              ) -> Table:
    """All four, with instructions of the function, or of the architecture: those are classified
    here and now."""
    address, found = firing.instruction.address, dict[str, list[str]]()
    for one in table:
        found.setdefault(_kind(one.verdict), []).append(
            f"{one.offset} {words.arch.disassemble(one.code, one.address)}")
    found = {kind: some[:EXAMPLES] for kind, some in found.items()}
    for code in words.trap.instructions.examples:
        some = found.setdefault(_kind(words.trap.instructions.classify(code, address)[1]), [])
        if len(some) < EXAMPLES:
            some.append(words.arch.disassemble(code, address))
    return Table(("verdict", "an instruction that", "", "like"), tuple(
        (name, which, what, "; ".join(found.get(name, ["none of this architecture"])))
        for name, (which, what) in VERDICTS.items()), frozenset(
        number for number, name in enumerate(VERDICTS) if name == word))


def _kind(verdict: Verdict) -> str:
    return summary(verdict).partition(":")[0]


def _refusals(firing: SeenFiring, words: Words) -> Table:
    """Reasons, with instructions that have them."""
    found: dict[str, list[str]] = {}
    for code in words.trap.instructions.examples:
        verdict = words.trap.instructions.classify(code, firing.instruction.address)[1]
        if isinstance(verdict, Refuse):
            found.setdefault(verdict.reason, []).append(
                words.arch.disassemble(code, firing.instruction.address))
    return Table(("it", "like"), tuple((reason, "; ".join(some)) for reason, some in found.items()))


def _told(part: object) -> str:
    """A verdict, and what it is made of, by the names they have in the tables."""
    if isinstance(part, int) and not isinstance(part, bool):
        return f"{part:#x}" if abs(part) >= ADDRESS else str(part)
    if not is_dataclass(part):
        return str(part)
    name = CAPITAL.sub(" ", type(part).__name__).lower()
    inner = [f"{field.name} {value}" if not is_dataclass(getattr(part, field.name)) else value
             for field in fields(part) if field.repr
             for value in [_told(getattr(part, field.name))]]
    return f"{name} ({', '.join(inner)})" if inner else name


def _trampoline(firing: SeenFiring, words: Words) -> Step:
    arch, rows, at = words.arch, list[tuple[str, ...]](), firing.slot
    executed = {row.address: row for row in firing.rows}
    marked = set[int]()
    while at in executed:
        code = executed[at].code
        if at != firing.second:
            marked.add(len(rows))
        rows.append((f"{at:#x}", _hex(code), arch.disassemble(code, at)))
        at += len(code)
    used = firing.trampoline[: at - firing.slot]
    parts: list[str | Table] = [
        f"The trampoline is at {firing.slot:#x}, {firing.slot - firing.instruction.address:+#x} "
        "from the instruction. These of its instructions are executed:",
        Table(("address", "bytes", "instruction"), tuple(rows), frozenset(marked))]
    rest = firing.trampoline[len(used) : len(used) + 8]
    jump = words.trap.jump
    if jump and used.endswith(jump):
        parts.append("Its last instruction jumps to the address that stands right behind it, "
                     f"lowest byte first: {_hex(rest)}, {int.from_bytes(rest, 'little'):#x}.")
    if words.trap.second_breakpoint:
        parts.append(_second(firing, words))
    if isinstance(firing.instruction.verdict, Rewrite):
        code, address = firing.instruction.code, firing.instruction.address
        parts += displacement(firing, firing.instruction.verdict)
        here, there = (arch.disassemble(code, at) for at in (address, firing.slot))
        if here != there:
            parts.append(f"At its own place it was {here} ({_hex(code)}); the same bytes in the "
                         f"trampoline would be {there}.")
    at_slot = next((i for i, row in enumerate(firing.rows) if row.address == firing.slot),
                   firing.last)
    return Step("trampoline", "The trampoline", tuple(parts), at_slot)


def _second(firing: SeenFiring, words: Words) -> str:
    """Where the second breakpoint of a trampoline is, and why there."""
    code, nop = firing.instruction.code, words.trap.short_nop
    text = f"Behind the instruction is a second breakpoint, at {firing.second:#x}"
    if nop and len(code) < 2 * len(nop):
        text += (f": {len(nop)} bytes that do nothing ({words.arch.disassemble(nop, 0)}) fill up, "
                 f"so that it is {2 * len(nop)} bytes from the begin, as it is behind an "
                 f"instruction of {2 * len(nop)} bytes")
    word = firing.trampoline[:4]
    return (f"{text}. Bytes stand lowest first: {_hex(word)} is the word of 32 bits "
            f"{int.from_bytes(word, 'little'):#010x}.")


def displacement(firing: SeenFiring, verdict: Rewrite) -> list[str]:
    """What refers to something by distance, there and here: from the bytes."""
    if firing.mistake.kind == SHARE:
        return []  # what was written there is another instruction
    if verdict.displacement is None:
        behind = firing.trampoline.find(verdict.data) if verdict.data else -1
        return [] if behind < 0 else [
            f"After it, at {firing.slot + behind:#x}, is the constant that it loads: "
            f"{_hex(verdict.data)}, {int.from_bytes(verdict.data, 'little'):#x}."]
    at, code, length = verdict.displacement[0], firing.instruction.code, len(verdict.code)
    if firing.mistake.kind:  # as it is
        at, length = at + len(code) - length, len(code)
    made, places = list[str](), list[int]()
    for where, begin, held, size in (
            ("At its own place", firing.instruction.address, code, len(code)),
            ("In the trampoline", firing.slot, firing.trampoline, length)):
        # The field is as far from the end in both: a short form may have become a long one.
        field = held[at + size - length : at + size - length + 4]
        distance = int.from_bytes(field, "little", signed=True)
        places.append(begin + size + distance & MASK)
        made.append(f"{where} its displacement is {distance:+#x} ({_hex(field)}), counted from "
                    f"its end, {begin + size:#x}: {places[-1]:#x}.")
    if places[0] != places[1]:
        return [*made, f"It leads to {places[1]:#x} instead of {places[0]:#x}."]
    return [*made, "Both lead to the same place: the displacement is the place less the address "
            "where the instruction ends, and of 32 bits; less than nothing, it is that and "
            "0x100000000."]


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
    if words.trap.told:
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
    rows, marked = list[tuple[str, ...]](), set[int]()
    for name, value in first.registers.items():
        now = last.registers[name]
        if now != value:
            marked.add(len(rows))
        rows.append((name, f"{value:#x}", f"{now:#x}"))
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
    rows, marked = list[tuple[str, ...]](), set[int]()
    for address in range(at - PUSHED_BELOW * WORD, top, WORD):
        inside = address - frame.address
        if inside < 0 or address not in before:
            continue
        trapped = (int.from_bytes(frame.before[inside : inside + WORD], "little")
                   if inside + WORD <= len(frame.before) else before[address])
        if address == at:
            marked.add(len(rows))
        rows.append((f"{address:#x}", f"{before[address]:#x}",
                     f"{trapped:#x}", f"{after.get(address, before[address]):#x}"))
    yield Table(("address", "before", "with the trap frame", "after"), tuple(rows),
                frozenset(marked))


def what_if(right: SeenFiring, wrong: SeenFiring, words: Words) -> list[Step]:
    """What became of the same firing when it was done wrong, beside what should have."""
    instruction, arch = right.instruction, words.arch
    begin = _first_inside(wrong)
    if wrong.mistake.kind == COPY:
        title = "What if it were copied as it is?"
        why = (f"Its verdict is {summary(instruction.verdict)}. Here its bytes were copied into a "
               f"trampoline instead, at {wrong.slot:#x}, and executed there:")
    else:
        title = "What if another firing used the same trampoline?"
        assert wrong.mistake.other is not None
        other = wrong.mistake.other
        text = arch.disassemble(other.code, other.address)
        why = (f"When the handler had answered, the trampoline at {wrong.slot:#x} was written "
               f"again, as by another firing just then that has the same trampoline, of the probe "
               f"at {wrong.function.name}:{other.offset} ({text}). Then the first one went "
               "on:")
    last = wrong.mistake.strayed or wrong.last
    parts: list[str | Table] = [why, Table(
        ("where", "bytes", "instruction"), tuple(
            (words.where(row.address), _hex(row.code), arch.disassemble(row.code, row.address))
            for row in [*_inside(wrong, begin), wrong.rows[last]]), frozenset({0}))]
    after = right.rows[right.last].registers, wrong.rows[last].registers
    rows = [(name, f"{value:#x}", f"{after[1][name]:#x}")
            for name, value in after[0].items() if after[1][name] != value]
    if wrong.mistake.strayed:
        at = wrong.rows[wrong.mistake.strayed].address
        there = right.rows[right.last].address
        if at != there:
            why = f"It should have gone on at {words.place(there)}. It was stopped."
        elif words.trap.second_breakpoint:
            why = ("That is where it should go on; but it has not come by the second breakpoint: "
                   "the handler still waits for it, with interrupts masked.")
        else:
            why = "That is where it should go on: no jump after the copy was needed."
        parts.append(f"From there the run came to {words.place(at)}. {why}")
    if wrong.mistake.ended:
        parts.append(f"The call ended badly: {wrong.mistake.ended}.")
    if rows:
        parts += ["What is not as the instruction at its own place leaves it:",
                  Table(("register", "as it should be", "as it was"), tuple(rows))]
    stored = _stored_otherwise(right, wrong, words)
    if stored:
        parts += ["What is not in memory as the instruction at its own place leaves it:",
                  Table(("address", "what is there", "before", "as it should be", "as it was"),
                        tuple(stored))]
    if right.memory.devices != wrong.memory.devices:
        parts += ["What is not stored to devices as by the instruction at its own place:",
                  Table(("run", "stores"), (("as it should be", _to_devices(right)),
                                            ("as it was", _to_devices(wrong))))]
    elif not rows and not stored:
        parts.append("The registers, and what it stores, are as they should be there"
                     + ("." if wrong.mistake.ended or wrong.mistake.strayed else
                        ": with these values it makes no difference."))
    return [Step("what-if", title, tuple(parts), last, wrong=True)]


def _to_devices(firing: SeenFiring) -> str:
    return ", ".join(f"{value:#x} ({size} bytes) to physical {at:#x}"
                     for at, size, value in firing.memory.devices) or "nothing"


def _stored_otherwise(right: SeenFiring, wrong: SeenFiring, words: Words
                      ) -> list[tuple[str, ...]]:
    """Where one of the two has stored, and memory is not the same behind them; both began with the
    same memory."""
    made = [_stores(right), _stores(wrong)]
    left: list[dict[int, int]] = []
    before: dict[int, int] = {}
    for stores in made:
        left.append({})
        for store in stores:
            for at, (old, new) in enumerate(zip(store.before, store.after, strict=True)):
                before.setdefault(store.physical + at, old)
                left[-1][store.physical + at] = new
    found = dict[int, tuple[str, ...]]()
    for store in (*made[0], *made[1]):
        places = range(store.physical, store.physical + len(store.before))
        values = [bytes(one.get(at, before[at]) for at in places)
                  for one in (before, *left)]
        if values[1] != values[2]:
            address = store.address
            found[store.physical] = (
                f"physical {store.physical:#x}" if address is None else f"{address:#x}",
                _what_is_at(address, right, wrong, words),
                *(f"{int.from_bytes(value, 'little'):#x}" for value in values))
    return list(found.values())


def _stores(firing: SeenFiring) -> list[SeenStore]:
    return [store for row in sorted(firing.memory.stores) for store in firing.memory.stores[row]]


def _what_is_at(address: int | None, right: SeenFiring, wrong: SeenFiring, words: Words) -> str:
    if address is None:
        return "?"
    if wrong.slot and wrong.slot & -LARGE == address & -LARGE:
        return "the trampolines"
    variable = words.variable(address)
    if variable:
        return variable
    on_stack = 0 <= address - right.rows[right.last].registers[words.arch.sp] < STACK
    return "the stack" if on_stack else words.where(address)


def up_to_trampoline(steps: Sequence[Step], wrong: SeenFiring) -> list[Step]:
    """The steps of a firing that was done wrong: as those of the right one up to the handler's
    answer, then its own.

    :param steps: of the right one, what became of the other behind them.
    """
    begin = _first_inside(wrong)
    same = [step for step in steps if not step.wrong and step.name in SAME and step.row <= begin]
    return [*same, Step("trampoline", "The trampoline, done wrong", (), begin),
            *(replace(step, wrong=False) for step in steps if step.wrong)]


def _first_inside(firing: SeenFiring) -> int:
    """The number of the row where its trampoline is come to."""
    return next((i for i, row in enumerate(firing.rows) if firing.slot <= row.address
                 < firing.slot + len(firing.trampoline)), 0)


def _inside(firing: SeenFiring, begin: int) -> list[SeenInstruction]:
    """What is executed in the trampoline, from the first time on."""
    found = []
    for row in firing.rows[begin:]:
        if not firing.slot <= row.address < firing.slot + len(firing.trampoline):
            break
        found.append(row)
    return found
