"""Steps that explain a recorded firing of the kernel's own tracer."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from emu.guest.tracer import TracerCode, TracerPart
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_tracing import BREAKPOINT, CALL, PROGRAM, SeenTracing
from kinst_emu.explain.steps.step import Count, Step, Table, Value
from kinst_emu.explain.steps.words import Words

MAX_SHOWN = 60  # maximum number of rows in a table
WORD = 8  # size of a word in bytes
BITS = 32  # number of bits in a row of a table
FIRING = (TracerPart.PROBE, TracerPart.PREDICATE, TracerPart.ACTION, TracerPart.ERROR)
HEADER, NUMBER = 12, 4  # sizes in bytes of a record's header, and of the ECB's number in it
# What each part does, in the order of the table of parts.
ABOUT = {
    TracerPart.TRAP: "vectors, trap frame, and the way back",
    TracerPart.PROVIDER: "finds the probe, and prepares arguments or the way back",
    TracerPart.PROBE: "for each clause: checks, buffer, record",
    TracerPart.PREDICATE: "decides whether the actions are taken",
    TracerPart.ACTION: "evaluates expressions, aggregates, walks stacks",
    TracerPart.ERROR: "reports a fault in a predicate or an action, by the ERROR probe",
    TracerPart.COPY: "writes the trampoline",
    TracerPart.TRAMPOLINE: "the displaced instruction, and the way back",
}


def tracing_steps(seen: SeenTracing, tracer: TracerCode, words: Words) -> list[Step]:
    """Return the steps of a recorded firing."""
    steps = [_enabled(seen, words)]
    if seen.how != CALL:
        steps.append(_exception(seen, words))
    if seen.handled:
        steps.append(_entry(seen, words))
    if seen.frame:
        steps.append(_frame(seen, words))
    steps += [_provider(seen, tracer, words), _probe(seen, tracer, words)]
    if TracerPart.PREDICATE in seen.parts:
        steps.append(_predicate(seen, tracer, words))
    if TracerPart.ACTION in seen.parts:
        steps.append(_actions(seen, words))
    if TracerPart.ERROR in seen.parts:
        steps.append(_error(seen, words))
    if seen.record:
        steps.append(_record(seen))
    if seen.how == BREAKPOINT:
        steps.append((_trampoline if seen.slot else _emulated)(seen, tracer, words))
    if seen.trampoline:
        steps.append(_executed(seen, words))
    return [*steps, _after(seen, words), _parts(seen)]


def first_of(seen: SeenTracing, *parts: TracerPart) -> int:
    """Return the number of the first row of some parts, or that of the last row of all."""
    return next((n for n, part in enumerate(seen.parts) if part in parts), len(seen.rows) - 1)


def last_of(seen: SeenTracing, *parts: TracerPart) -> int:
    """Return the number of the last row of some parts, or 0."""
    return next((n for n in range(len(seen.parts) - 1, 0, -1) if seen.parts[n] in parts), 0)


def _stays(seen: SeenTracing, words: Words, rows: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield (function, number of instructions) for each uninterrupted stay in a function."""
    for name, group in groupby(rows, key=lambda n: _name(seen, words, n)):
        yield name, len(list(group))


def _name(seen: SeenTracing, words: Words, number: int) -> str:
    return seen.functions[number] or words.where(seen.rows[number].address).partition("+")[0]


def _functions(seen: SeenTracing, words: Words, rows: Sequence[int]) -> Table:
    """Return a table of the functions that some rows belong to."""
    stays = list(_stays(seen, words, rows))
    shown: list[tuple[Value, ...]] = [(name, Count(count)) for name, count in stays[:MAX_SHOWN]]
    if len(stays) > MAX_SHOWN:
        shown.append((f"({len(stays) - MAX_SHOWN} more)", ""))
    return Table(("function", "instructions"), tuple(shown))


def _executed_rows(rows: Sequence[SeenInstruction], words: Words) -> Table:
    """Return a table of executed instructions."""
    shown: list[tuple[Value, ...]] = [
        (row.address, words.where(row.address), words.arch.disassemble(row.code, row.address))
        for row in rows[:MAX_SHOWN]]
    if len(rows) > MAX_SHOWN:
        shown.append((f"({len(rows) - MAX_SHOWN} more)", "", ""))
    return Table(("address", "where", "instruction"), tuple(shown))


def _enabled(seen: SeenTracing, words: Words) -> Step:
    first = seen.rows[0]
    place, here = words.where(first.address), words.arch.disassemble(first.code, first.address)
    who = f"{seen.process} (process {seen.pid})"
    parts: list[str | Table] = [
        f"The kernel's own DTrace traces {seen.name}, probe {seen.probe}; {who} makes it fire. "
        "What is enabled for the probe is kept in enabling control blocks (ECBs), one for each "
        "clause:",
        Table(("ECB", "predicate", "actions, one for each value"), tuple(
            (Count(ecb.number), "yes" if ecb.predicate else "no", ", ".join(ecb.actions) or "none")
            for ecb in seen.ecbs))]
    if seen.how == CALL:
        parts.append(f"The probed code at {first.address:#x}, {place}, calls the tracer: {here}.")
        return Step("patch", f"{place.partition('+')[0]} is about to call DTrace", tuple(parts))
    code = seen.original
    parts.append(f"The breakpoint at {words.place(first.address)} has replaced the instruction:")
    parts.append(Table(("", "bytes", "instruction"), (
        *([("displaced", code, words.arch.disassemble(code, first.address))] if code else []),
        ("breakpoint", first.code, here)), frozenset({bool(code)})))
    return Step("patch", "The program reaches a breakpoint" if seen.how == PROGRAM
                else f"{place.partition('+')[0]} reaches a breakpoint of DTrace", tuple(parts))


def _exception(seen: SeenTracing, words: Words) -> Step:
    first, second = seen.rows[0], seen.rows[1]
    changed = tuple((name, first.registers[name], value)
                    for name, value in second.registers.items() if first.registers[name] != value)
    return Step("exception", "The CPU takes the exception", (
        f"It continues in the vector at {words.place(second.address)}. These registers have "
        "changed:", Table(("register", "before", "in the vector"), changed)), 1)


def _entry(seen: SeenTracing, words: Words) -> Step:
    rows = range(1, seen.handled)
    assembly = [seen.rows[n] for n in rows if not seen.functions[n]]
    handler = seen.functions[seen.handled]
    parts: list[str | Table] = [
        f"{len(rows)} instructions build a trap frame and pass it to {handler}:",
        _functions(seen, words, rows)]
    if assembly:
        parts += ["The vector's own instructions:", _executed_rows(assembly, words)]
    return Step("vector", f"The vector calls {handler}", tuple(parts), seen.handled - 1)


def _content(seen: SeenTracing, upto: int) -> dict[int, int]:
    """Return the recorded words as they are before a row is executed."""
    content = dict[int, int]()
    for stored in seen.stored[: upto + 1]:
        content |= stored
    return content


def _fields(seen: SeenTracing, words: Words, content: Mapping[int, int]
            ) -> dict[str, tuple[int, int]]:
    """Return the address and the value of each field of the trap frame."""
    result = {}
    for name, (offset, size) in words.guest.traps.trap_frame.fields.items():
        at = seen.frame + offset
        word = content.get(at & -WORD)
        if word is not None:
            result[name] = at, word >> 8 * (at % WORD) & (1 << 8 * size) - 1
    return result


def _frame(seen: SeenTracing, words: Words) -> Step:
    fields = _fields(seen, words, _content(seen, seen.handled or seen.fired))
    return Step("frame", "The trap frame", (
        f"The trap frame at {seen.frame:#x} holds the registers of the interrupted code. The "
        "tracer reads probe arguments and registers from it, and decides where the code continues "
        "by changing it.",
        Table(("address", "field", "value"),
              tuple((at, name, value) for name, (at, value) in fields.items()))),
        seen.handled or 1)


def _provider(seen: SeenTracing, tracer: TracerCode, words: Words) -> Step:
    rows = range(seen.handled or first_of(seen, TracerPart.PROVIDER, TracerPart.PROBE), seen.fired)
    how = {BREAKPOINT: "DTrace asks its providers, one after the other, whether the breakpoint is "
                       "theirs. The provider looks the address up and finds the probe.",
           PROGRAM: "The kernel recognizes a breakpoint of a program and asks the provider, which "
                    "looks up process and address.",
           CALL: "The provider's function prepares the probe's arguments."}[seen.how]
    if not rows:
        return Step("lookup", f"The kernel calls {tracer.fires} itself", (
            "No function of a provider runs before it.",), seen.fired)
    return Step("lookup", f"The provider calls {tracer.fires}", (
        f"{how} It then calls {tracer.fires} with the number of the probe, {seen.probe}:",
        _functions(seen, words, rows)), seen.fired)


def _probe(seen: SeenTracing, tracer: TracerCode, words: Words) -> Step:
    rows = [n for n, part in enumerate(seen.parts) if part in FIRING]
    own = seen.count(TracerPart.PROBE)
    return Step("probe", f"{tracer.fires} runs the clauses", (
        f"Interrupts are disabled. {tracer.fires} takes the time, reserves room in the CPU's "
        "buffer, and goes through the ECBs. "
        + (f"{own} of the {len(rows)} instructions are its own; the others evaluate predicates "
           "and actions." if own < len(rows) else f"It executes {own} instructions.")
        + " The functions"
        + (", with inlined ones that take an action:" if own < len(rows) else ":"),
        _functions(seen, words, rows)), seen.fired)


def _predicate(seen: SeenTracing, tracer: TracerCode, words: Words) -> Step:
    rows = [n for n, part in enumerate(seen.parts) if part is TracerPart.PREDICATE]
    values = [true for _row, true in seen.predicates]
    if len(values) > 1:
        title = "The predicates are " + ", ".join("true" if one else "false" for one in values)
    elif TracerPart.ERROR in seen.parts and values == [False]:
        title = "The predicate faults"
    else:
        title = "The predicate is " + ("true" if any(values) else "false")
    return Step("predicate", title, (
        f"{tracer.evaluates} interprets DIF code, an instruction set of DTrace's own: {len(rows)} "
        "instructions of the CPU. If a predicate is false, the actions of its clause are not "
        "taken.", _functions(seen, words, rows)), rows[0])


def _error(seen: SeenTracing, words: Words) -> Step:
    rows = [n for n, part in enumerate(seen.parts) if part is TracerPart.ERROR]
    return Step("error", "A fault is reported", (
        "A predicate or an action has caused a fault; the rest of its clause is left out, and the "
        f"probe ERROR fires: {len(rows)} instructions.", _functions(seen, words, rows)), rows[0])


def _actions(seen: SeenTracing, words: Words) -> Step:
    rows = [n for n, part in enumerate(seen.parts) if part is TracerPart.ACTION]
    return Step("clause", "The actions are taken", (
        f"{len(rows)} instructions evaluate the actions' expressions, copy strings, aggregate and "
        "walk stacks:", _functions(seen, words, rows)), rows[0])


def _record(seen: SeenTracing) -> Step:
    rows = list[tuple[Value, ...]]()
    for what, begin, end in _pieces(seen):
        for at in range(begin, end, WORD):
            piece = seen.record[at : min(at + WORD, end)]
            rows.append((seen.record_at + at, piece, "".join(
                chr(byte) if 32 <= byte < 127 else "." for byte in piece), what))
    shown = rows[:MAX_SHOWN]
    if len(rows) > MAX_SHOWN:
        shown.append((f"({len(rows) - MAX_SHOWN} more)", "", "", ""))
    return Step("record", "The record in the buffer", (
        f"The firing has added {len(seen.record)} bytes to the CPU's buffer. A record begins with "
        "the ECB's number in 4 bytes and the time in 8 bytes, the upper half first; what the "
        "actions record follows. dtrace(1) copies the buffer later and prints it.",
        Table(("address", "bytes", "text", "what"), tuple(shown))),
        last_of(seen, *FIRING))


def _pieces(seen: SeenTracing) -> Iterator[tuple[str, int, int]]:
    """Yield (what it is, begin, end) for each piece of what the firing has added to the buffer."""
    sizes = {ecb.number: ecb.size for ecb in seen.ecbs}
    at, end = 0, len(seen.record)
    while at < end:
        number = int.from_bytes(seen.record[at : at + NUMBER], "little")
        if not number:
            yield "padding", at, min(at + NUMBER, end)
            at += NUMBER
            continue
        size = max(sizes.get(number, 0), HEADER)
        yield f"ECB {number}, time", at, min(at + HEADER, end)
        if number not in sizes:  # a record of the ERROR probe
            size = end - at
        if size > HEADER:
            yield f"values of ECB {number}", at + HEADER, min(at + size, end)
        at += size


def _trampoline(seen: SeenTracing, tracer: TracerCode, words: Words) -> Step:
    arch, size = words.arch, tracer.chunks.trampoline
    rows, at = list[tuple[Value, ...]](), 0
    displaced, breakpoint_ = True, words.trap.guest_breakpoint.code
    while at < len(seen.slot):
        rest = seen.slot[at:]
        length = arch.instruction_length(rest)
        if not length or length > len(rest):
            break
        code = rest[:length]
        rows.append((seen.trampoline + at, code, arch.disassemble(code, seen.trampoline + at)))
        at += length
        if not displaced and (words.trap.jump or code == breakpoint_):
            break
        displaced = False
    parts: list[str | Table] = []
    chunk = next((chunk for chunk in seen.chunks
                  if chunk.address <= seen.trampoline < chunk.address + tracer.chunks.size), None)
    if chunk is not None:
        number = (seen.trampoline - chunk.address) // size
        used, count = chunk.free.count(False), len(chunk.free)
        parts += [
            f"Trampolines are parts of chunks of {tracer.chunks.size} bytes, {size} bytes each. A "
            f"bit set says which ones are free. {_chunks(len(seen.chunks))} This "
            f"trampoline is number {number} of the chunk at {chunk.address:#x}, in which {used} of "
            f"{count} are in use:",
            Table(("number", "bit set (# in use, . free)"),
                  tuple((Count(at), _bits(chunk.free[at : at + BITS]))
                        for at in range(0, count, BITS)), frozenset({number // BITS}))]
    copying = seen.count(TracerPart.COPY)
    parts.append(f"{copying} instructions have written the trampoline of this thread; another "
                 "firing of the thread will overwrite it:" if copying else
                 "The trampoline belongs to the probe and was written when the probe was made:")
    parts.append(Table(("address", "bytes", "instruction"), tuple(rows), frozenset({0})))
    if words.trap.jump and at < len(seen.slot):
        target = int.from_bytes(seen.slot[at : at + WORD], "little")
        parts.append(f"The jump reads its target from the {WORD} bytes after it: "
                     f"{words.place(target)}."
                     + (" The rest of the trampoline is filled with breakpoints."
                        if set(seen.slot[at + WORD :]) == set(breakpoint_) else ""))
    return Step("trampoline", "The trampoline", tuple(parts),
                last_of(seen, TracerPart.PROVIDER, TracerPart.COPY))


def _chunks(count: int) -> str:
    return "There is one chunk." if count == 1 else f"There are {count} chunks."


def _bits(free: Sequence[bool]) -> str:
    """Return bits as text, in groups of eight."""
    return " ".join("".join("." if one else "#" for one in free[at : at + 8])
                    for at in range(0, len(free), 8))


def _emulated(seen: SeenTracing, tracer: TracerCode, words: Words) -> Step:
    begin = last_of(seen, *FIRING) + 1
    rows = range(begin, len(seen.rows) - 1)
    before = _fields(seen, words, _content(seen, seen.fired))
    # Assembly code may overwrite the trap frame while it returns.
    upto = (last_of(seen, *FIRING, TracerPart.PROVIDER) + 1 if tracer.frame_on_stack
            else len(seen.rows) - 1)
    after = _fields(seen, words, _content(seen, upto))
    changed = tuple((name, before[name][1], value) for name, (_at, value) in after.items()
                    if before[name][1] != value)
    text = words.arch.disassemble(seen.original, seen.rows[0].address)
    parts: list[str | Table] = [
        f"{text} is not executed: {len(rows)} instructions have its effect on registers, stack "
        "and trap frame, and return.", _functions(seen, words, rows)]
    if changed:
        parts += ["Changes of the trap frame:", Table(("field", "before", "after"), changed)]
    if tracer.frame_on_stack:
        parts += ["These instructions do it:",
                  _executed_rows([seen.rows[n] for n in range(upto, len(seen.rows) - 1)], words)]
    return Step("emulated", "The displaced instruction is emulated", tuple(parts),
                len(seen.rows) - 2)


def _executed(seen: SeenTracing, words: Words) -> Step:
    begin = first_of(seen, TracerPart.TRAMPOLINE)
    rows = [seen.rows[n] for n in range(begin, len(seen.rows) - 1)
            if seen.parts[n] is TracerPart.TRAMPOLINE]
    behind = range(begin, len(seen.rows) - 1)
    own = [n for n in behind if seen.parts[n] is TracerPart.CODE]
    again = [n for n in behind
             if seen.parts[n] not in (TracerPart.TRAMPOLINE, TracerPart.CODE)]
    emulated = seen.how == BREAKPOINT and rows[0].address != seen.trampoline
    title = "The displaced instruction is executed"
    parts: list[str | Table] = ["The exception has returned to the trampoline, where the "
                                "displaced instruction is executed:", _executed_rows(rows, words)]
    if emulated:  # another provider has a probe at the same instruction
        title = "The trampoline is left at once"
        parts[0] = ("Another provider, which knows the instruction, has emulated it. The exception "
                    "has therefore returned to what follows it in the trampoline:")
    if own:
        parts += [f"It causes an exception of its own, such as a page fault: {len(own)} "
                  "instructions, which are not counted as the tracer's.",
                  _functions(seen, words, own)]
    if again:
        parts += [f"The breakpoint{' after it' * (not emulated)} causes a second exception: "
                  f"{len(again)} instructions until the probed code continues.",
                  _functions(seen, words, again)]
    return Step("displaced", title, tuple(parts), begin)


def _after(seen: SeenTracing, words: Words) -> Step:
    first, last = seen.rows[0], seen.rows[-1]
    rows = tuple((name, value, last.registers[name]) for name, value in first.registers.items())
    return Step("after", "The probed code continues", (
        f"It is at {words.place(last.address)}, {len(seen.rows) - 1} instructions later.",
        Table(("register", "before", "after"), rows,
              frozenset(n for n, row in enumerate(rows) if row[1] != row[2]))),
        len(seen.rows) - 1)


def _parts(seen: SeenTracing) -> Step:
    rows: list[tuple[Value, ...]] = [(part.value, Count(seen.count(part)), about)
                                     for part, about in ABOUT.items() if seen.count(part)]
    total = sum(seen.count(part) for part in ABOUT)
    rows.append(("total", Count(total), ""))
    return Step("cost", "What the firing costs", (
        f"Instructions of the firing, without the one that causes it: {total}.",
        Table(("part", "instructions", "what it does"), tuple(rows),
              frozenset({len(rows) - 1}))), len(seen.rows) - 1)
