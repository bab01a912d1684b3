"""What became of a firing that was done wrong, beside what should have."""

from collections.abc import Sequence
from dataclasses import replace

from emu.guest.hole import LARGE
from kinst.relocation.verdict import summary
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_firing import SeenFiring, SeenStore
from kinst_emu.explain.record.what_if import COPY
from kinst_emu.explain.steps.step import Step, Table, Value
from kinst_emu.explain.steps.words import Words

STACK = 16384  # bytes: the most of a stack
# Steps that a firing which is done wrong has, too.
SAME = ("function", "patch", "exception", "vector", "frame", "lookup", "clause", "verdict")


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
            (words.where(row.address), row.code, arch.disassemble(row.code, row.address))
            for row in [*_inside(wrong, begin), wrong.rows[last]]), frozenset({0}))]
    after = right.rows[right.last].registers, wrong.rows[last].registers
    rows = [(name, value, after[1][name])
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
                      ) -> list[tuple[Value, ...]]:
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
    found = dict[int, tuple[Value, ...]]()
    for store in (*made[0], *made[1]):
        places = range(store.physical, store.physical + len(store.before))
        values = [bytes(one.get(at, before[at]) for at in places)
                  for one in (before, *left)]
        if values[1] != values[2]:
            address = store.address
            found[store.physical] = (
                f"physical {store.physical:#x}" if address is None else address,
                _what_is_at(address, right, wrong, words),
                *(int.from_bytes(value, "little") for value in values))
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
