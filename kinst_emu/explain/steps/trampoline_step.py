"""The step of a firing in its trampoline."""

from kinst.relocation.verdict import Rewrite
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.record.what_if import SHARE
from kinst_emu.explain.steps.step import Step, Table, Value, shown
from kinst_emu.explain.steps.words import Words

MASK = (1 << 64) - 1


def trampoline_step(firing: SeenFiring, words: Words) -> Step:
    arch, rows, at = words.arch, list[tuple[Value, ...]](), firing.slot
    executed = {row.address: row for row in firing.rows}
    marked = set[int]()
    while at in executed:
        code = executed[at].code
        if at != firing.second:
            marked.add(len(rows))
        rows.append((at, code, arch.disassemble(code, at)))
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
                     f"lowest byte first: {shown(rest)}, {int.from_bytes(rest, 'little'):#x}.")
    if words.trap.second_breakpoint:
        parts.append(_second(firing, words))
    if isinstance(firing.instruction.verdict, Rewrite):
        code, address = firing.instruction.code, firing.instruction.address
        parts += displacement(firing, firing.instruction.verdict)
        here, there = (arch.disassemble(code, at) for at in (address, firing.slot))
        if here != there:
            parts.append(f"At its own place it was {here} ({shown(code)}); the same bytes in the "
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
    return (f"{text}. Bytes stand lowest first: {shown(word)} is the word of 32 bits "
            f"{int.from_bytes(word, 'little'):#010x}.")


def displacement(firing: SeenFiring, verdict: Rewrite) -> list[str]:
    """What refers to something by distance, there and here: from the bytes."""
    if firing.mistake.kind == SHARE:
        return []  # what was written there is another instruction
    if verdict.displacement is None:
        behind = firing.trampoline.find(verdict.data) if verdict.data else -1
        return [] if behind < 0 else [
            f"After it, at {firing.slot + behind:#x}, is the constant that it loads: "
            f"{shown(verdict.data)}, {int.from_bytes(verdict.data, 'little'):#x}."]
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
        made.append(f"{where} its displacement is {distance:+#x} ({shown(field)}), counted from "
                    f"its end, {begin + size:#x}: {places[-1]:#x}.")
    if places[0] != places[1]:
        return [*made, f"It leads to {places[1]:#x} instead of {places[0]:#x}."]
    return [*made, "Both lead to the same place: the displacement is the place less the address "
            "where the instruction ends, and of 32 bits; less than nothing, it is that and "
            "0x100000000."]
