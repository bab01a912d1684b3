"""The step of an explanation that shows the trampoline of a firing."""

from kinst.relocation.verdict import Rewrite
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.record.what_if import SHARE
from kinst_emu.explain.steps.step import Step, Table, Value, shown
from kinst_emu.explain.steps.words import Words

MASK = (1 << 64) - 1


def trampoline_step(firing: SeenFiring, words: Words) -> Step:
    """Return the step in which the displaced instruction is executed in its trampoline."""
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
        "from the instruction. These instructions in it are executed:",
        Table(("address", "bytes", "instruction"), tuple(rows), frozenset(marked))]
    rest = firing.trampoline[len(used) : len(used) + 8]
    jump = words.trap.jump
    if jump and used.endswith(jump):
        parts.append("The last one jumps to the address that is stored right after it, lowest "
                     f"byte first: {shown(rest)}, {int.from_bytes(rest, 'little'):#x}.")
    if words.trap.second_breakpoint:
        parts.append(_second(firing, words))
    if isinstance(firing.instruction.verdict, Rewrite):
        code, address = firing.instruction.code, firing.instruction.address
        parts += displacement(firing, firing.instruction.verdict)
        here, there = (arch.disassemble(code, at) for at in (address, firing.slot))
        if here != there:
            parts.append(f"At its original address the instruction is {here} ({shown(code)}); the "
                         f"same bytes in the trampoline would be {there}.")
    at_slot = next((i for i, row in enumerate(firing.rows) if row.address == firing.slot),
                   firing.last)
    return Step("trampoline", "The trampoline", tuple(parts), at_slot)


def _second(firing: SeenFiring, words: Words) -> str:
    """Explain the position of a trampoline's second breakpoint."""
    code, nop = firing.instruction.code, words.trap.short_nop
    text = f"The instruction is followed by a second breakpoint, at {firing.second:#x}"
    if nop and len(code) < 2 * len(nop):
        text += (f". Between them, {len(nop)} bytes of padding ({words.arch.disassemble(nop, 0)}) "
                 f"put the breakpoint {2 * len(nop)} bytes after the beginning, as for an "
                 f"instruction of {2 * len(nop)} bytes")
    word = firing.trampoline[:4]
    return (f"{text}. The lowest byte is stored first: {shown(word)} is the 32-bit word "
            f"{int.from_bytes(word, 'little'):#010x}.")


def displacement(firing: SeenFiring, verdict: Rewrite) -> list[str]:
    """Explain to which address an instruction refers, originally and in the trampoline."""
    if firing.mistake.kind == SHARE:
        return []  # the trampoline contains another instruction
    if verdict.displacement is None:
        offset = firing.trampoline.find(verdict.data) if verdict.data else -1
        return [] if offset < 0 else [
            f"After it, at {firing.slot + offset:#x}, is the constant that it loads: "
            f"{shown(verdict.data)}, {int.from_bytes(verdict.data, 'little'):#x}."]
    at, code, length = verdict.displacement[0], firing.instruction.code, len(verdict.code)
    if firing.mistake.kind:  # the instruction was copied unchanged
        at, length = at + len(code) - length, len(code)
    texts, places = list[str](), list[int]()
    for where, begin, content, size in (
            ("At its original address", firing.instruction.address, code, len(code)),
            ("In the trampoline", firing.slot, firing.trampoline, length)):
        # Both encodings have the displacement at the same distance from their end, even if one
        # encoding is longer.
        field = content[at + size - length : at + size - length + 4]
        distance = int.from_bytes(field, "little", signed=True)
        places.append(begin + size + distance & MASK)
        texts.append(f"{where}, its displacement is {distance:+#x} ({shown(field)}), from its end "
                     f"at {begin + size:#x} to {places[-1]:#x}.")
    if places[0] != places[1]:
        return [*texts, f"It leads to {places[1]:#x} instead of {places[0]:#x}."]
    return [*texts, "Both lead to the same address. The displacement is that address minus the "
            "address of the instruction's end, in 32 bits; a negative number is stored with "
            "0x100000000 added."]
