"""Steps that compare a mistaken firing (``--what-if``) with the correct firing."""

from collections.abc import Sequence
from dataclasses import replace

from emu.guest.hole import LARGE
from kinst.relocation.verdict import summary
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_firing import SeenFiring, SeenStore
from kinst_emu.explain.record.what_if import COPY
from kinst_emu.explain.steps.step import Step, Table, Value
from kinst_emu.explain.steps.words import Words

STACK = 16384  # maximum size of a kernel stack, in bytes
# Names of the steps that a firing with a deliberate mistake shares with the correct firing.
SAME = ("function", "patch", "exception", "vector", "frame", "lookup", "clause", "verdict")


def what_if(right: SeenFiring, wrong: SeenFiring, words: Words) -> list[Step]:
    """Return the step that compares a mistaken firing (``--what-if``) with the correct firing."""
    instruction, arch = right.instruction, words.arch
    begin = _first_inside(wrong)
    if wrong.mistake.kind == COPY:
        title = "What if the instruction were copied unchanged?"
        why = (f"Its verdict is {summary(instruction.verdict)}. Here its bytes were instead copied "
               f"to a trampoline at {wrong.slot:#x} and executed there:")
    else:
        title = "What if another firing used the same trampoline?"
        assert wrong.mistake.other is not None
        other = wrong.mistake.other
        text = arch.disassemble(other.code, other.address)
        why = (f"After the handler's answer, the trampoline at {wrong.slot:#x} was overwritten, "
               f"as if another firing used the same trampoline at that moment: one of the probe "
               f"at {wrong.function.name}:{other.offset} ({text}). Then the first firing "
               "continued:")
    last = wrong.mistake.strayed or wrong.last
    parts: list[str | Table] = [why, Table(
        ("where", "bytes", "instruction"), tuple(
            (words.where(row.address), row.code, arch.disassemble(row.code, row.address))
            for row in [*_inside(wrong, begin), wrong.rows[last]]), frozenset({0}))]
    after = right.rows[right.last].registers, wrong.rows[last].registers
    rows = [(name, value, after[1][name])
            for name, value in after[0].items() if after[1][name] != value]
    if wrong.mistake.strayed:
        strayed_to = wrong.rows[wrong.mistake.strayed].address
        expected = right.rows[right.last].address
        if strayed_to != expected:
            why = f"It should have continued at {words.place(expected)}. The run was stopped."
        elif words.trap.second_breakpoint:
            why = ("It should continue there, but it has not passed the second breakpoint: "
                   "the handler still waits for that, with interrupts masked.")
        else:
            why = "It should continue there: no jump was needed after the copy."
        parts.append(f"From there the run went to {words.place(strayed_to)}. {why}")
    if wrong.mistake.ended:
        parts.append(f"The call failed: {wrong.mistake.ended}.")
    if rows:
        parts += ["Registers that differ from the result at the original address:",
                  Table(("register", "as it should be", "as it was"), tuple(rows))]
    stored = _stored_otherwise(right, wrong, words)
    if stored:
        parts += ["Memory that differs from the result at the original address:",
                  Table(("address", "location", "before", "as it should be", "as it was"),
                        tuple(stored))]
    if right.memory.devices != wrong.memory.devices:
        parts += ["Stores to devices that differ from those at the original address:",
                  Table(("run", "stores"), (("as it should be", _to_devices(right)),
                                            ("as it was", _to_devices(wrong))))]
    elif not rows and not stored:
        parts.append("The registers, and what the instruction stores, are as they should be"
                     + ("." if wrong.mistake.ended or wrong.mistake.strayed else
                        ": with these values the mistake makes no difference."))
    return [Step("what-if", title, tuple(parts), last, wrong=True)]


def _to_devices(firing: SeenFiring) -> str:
    return ", ".join(f"{value:#x} ({size} bytes) to physical {at:#x}"
                     for at, size, value in firing.memory.devices) or "nothing"


def _stored_otherwise(right: SeenFiring, wrong: SeenFiring, words: Words
                      ) -> list[tuple[Value, ...]]:
    """Return a table row for each store after which the memory of the two firings differs.

    Both firings began with the same memory.
    """
    stores_of_both = [_stores(right), _stores(wrong)]
    left: list[dict[int, int]] = []
    before: dict[int, int] = {}
    for stores in stores_of_both:
        left.append({})
        for store in stores:
            for at, (old, new) in enumerate(zip(store.before, store.after, strict=True)):
                before.setdefault(store.physical + at, old)
                left[-1][store.physical + at] = new
    differences = dict[int, tuple[Value, ...]]()
    for store in (*stores_of_both[0], *stores_of_both[1]):
        places = range(store.physical, store.physical + len(store.before))
        values = [bytes(one.get(at, before[at]) for at in places)
                  for one in (before, *left)]
        if values[1] != values[2]:
            address = store.address
            differences[store.physical] = (
                f"physical {store.physical:#x}" if address is None else address,
                _what_is_at(address, right, wrong, words),
                *(int.from_bytes(value, "little") for value in values))
    return list(differences.values())


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
    """Return the steps of the firing with the mistake.

    Up to the handler's answer, the steps of both firings are the same.

    :param steps: steps of the correct firing, followed by the steps about the mistake.
    """
    begin = _first_inside(wrong)
    same = [step for step in steps if not step.wrong and step.name in SAME and step.row <= begin]
    return [*same, Step("trampoline", "The trampoline with the mistake", (), begin),
            *(replace(step, wrong=False) for step in steps if step.wrong)]


def _first_inside(firing: SeenFiring) -> int:
    """Return the number of the first row in the trampoline, or 0 if no row is in it."""
    return next((i for i, row in enumerate(firing.rows) if firing.slot <= row.address
                 < firing.slot + len(firing.trampoline)), 0)


def _inside(firing: SeenFiring, begin: int) -> list[SeenInstruction]:
    """Return the consecutive rows in the trampoline that begin at row ``begin``."""
    rows = []
    for row in firing.rows[begin:]:
        if not firing.slot <= row.address < firing.slot + len(firing.trampoline):
            break
        rows.append(row)
    return rows
