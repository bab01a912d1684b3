"""The step of a firing that says what becomes of the displaced instruction, and why."""

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from kinst.code.listing import ProbedInstruction
from kinst.relocation.verdict import Copy, Refuse, Rewrite, Verdict, summary
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.steps.step import Step, Table
from kinst_emu.explain.steps.words import Words

CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
ADDRESS = 10_000  # numbers from here on are shown as hexadecimal
EXAMPLES = 2  # of a verdict
VERDICTS = {
    "copy": ("does the same anywhere", "is executed in a trampoline"),
    "rewrite": ("names a place by its distance",
                "is executed there, written so that it means the same"),
    "emulate": ("would do something else there, like saying where to go on",
                "is carried out on the saved registers"),
    "refuse": ("has to do with exceptions, or is broken by one", "is not probed")}


def verdict_step(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words, row: int
             ) -> Step:
    verdict, code = firing.instruction.verdict, firing.instruction.code
    word = summary(verdict)
    text = words.arch.disassemble(code, firing.instruction.address)
    if words.trap.kernel_effects:
        answer = words.trap.kernel_effects[code].answer
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
    if not isinstance(verdict, Copy | Rewrite) and not words.trap.kernel_effects:
        parts.append(f"What is carried out, as this program has it: {_spelled(verdict)}.")
    if not words.trap.kernel_effects:
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


def _spelled(part: object) -> str:
    """A verdict, and what it is made of, by the names they have in the tables."""
    if isinstance(part, int) and not isinstance(part, bool):
        return f"{part:#x}" if abs(part) >= ADDRESS else str(part)
    if not is_dataclass(part):
        return str(part)
    name = CAPITAL.sub(" ", type(part).__name__).lower()
    inner = [f"{field.name} {value}" if not is_dataclass(getattr(part, field.name)) else value
             for field in fields(part) if field.repr
             for value in [_spelled(getattr(part, field.name))]]
    return f"{name} ({', '.join(inner)})" if inner else name
