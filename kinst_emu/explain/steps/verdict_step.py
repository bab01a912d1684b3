"""The step of an explanation that gives the verdict on the displaced instruction and its reason."""

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from kinst.code.listing import ProbedInstruction
from kinst.relocation.verdict import Copy, Refuse, Rewrite, Verdict, summary
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.steps.step import Step, Table
from kinst_emu.explain.steps.words import Words

CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
ADDRESS = 10_000  # smallest number that is shown in hexadecimal
EXAMPLES = 2  # maximum number of instructions shown for each verdict
VERDICTS = {
    "copy": ("does the same at any address", "is executed in a trampoline"),
    "rewrite": ("refers to a place by its distance",
                "is executed in a trampoline, changed so that it means the same"),
    "emulate": ("would act differently elsewhere, such as a branch",
                "is emulated on the saved registers"),
    "refuse": ("deals with exceptions, or would fail because of one", "is not probed")}


def verdict_step(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words, row: int
             ) -> Step:
    """Return the step that gives the verdict on the displaced instruction and its reason."""
    verdict, code = firing.instruction.verdict, firing.instruction.code
    word = summary(verdict)
    text = words.arch.disassemble(code, firing.instruction.address)
    if words.trap.kernel_effects:
        answer = words.trap.kernel_effects[code].answer
        why = (f"This kernel needs no trampoline for it: the handler returns {answer}, which tells "
               "the vectors which instruction it was, and they do its work themselves.")
    elif isinstance(verdict, Copy):
        why = ("It does not depend on its address, so it is copied unchanged and executed "
               "elsewhere.")
    elif isinstance(verdict, Rewrite):
        why = ("It refers to something by the distance from itself, so it is rewritten to mean "
               "the same in the trampoline.")
    else:
        why = ("It decides where the run continues, computes its own address, or changes what the "
               "exception has saved. A copy elsewhere would not do that, so its effect is carried "
               "out on the saved registers, and there is no trampoline.")
    parts: list[str | Table] = [f"{text}: {word}. {why}"]
    if not isinstance(verdict, Copy | Rewrite) and not words.trap.kernel_effects:
        parts.append(f"The operation that is carried out, in this program's terms: "
                     f"{_spelled(verdict)}.")
    if not words.trap.kernel_effects:
        parts += ["There are four verdicts on instructions. Examples with an offset are from this "
                  "function:", _verdicts(word, firing, table, words),
                  "Reasons to refuse an instruction:", _refusals(firing, words)]
    return Step("verdict", f"The verdict: {word}", tuple(parts), row)


def _verdicts(word: str, firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words
              ) -> Table:
    """Return a table of the four verdicts, with examples from the function or the architecture.

    The examples are classified by the relocation tables, like any other instruction.
    """
    address, examples = firing.instruction.address, dict[str, list[str]]()
    for one in table:
        examples.setdefault(_kind(one.verdict), []).append(
            f"{one.offset} {words.arch.disassemble(one.code, one.address)}")
    examples = {kind: shown[:EXAMPLES] for kind, shown in examples.items()}
    for code in words.trap.instructions.examples:
        shown = examples.setdefault(_kind(words.trap.instructions.classify(code, address)[1]), [])
        if len(shown) < EXAMPLES:
            shown.append(words.arch.disassemble(code, address))
    return Table(("verdict", "an instruction that", "", "such as"), tuple(
        (name, which, what, "; ".join(examples.get(name, ["none on this architecture"])))
        for name, (which, what) in VERDICTS.items()), frozenset(
        number for number, name in enumerate(VERDICTS) if name == word))


def _kind(verdict: Verdict) -> str:
    return summary(verdict).partition(":")[0]


def _refusals(firing: SeenFiring, words: Words) -> Table:
    """Return a table of the reasons to refuse an instruction, with examples."""
    examples: dict[str, list[str]] = {}
    for code in words.trap.instructions.examples:
        verdict = words.trap.instructions.classify(code, firing.instruction.address)[1]
        if isinstance(verdict, Refuse):
            examples.setdefault(verdict.reason, []).append(
                words.arch.disassemble(code, firing.instruction.address))
    return Table(("an instruction that", "such as"), tuple(
        (reason, "; ".join(some)) for reason, some in examples.items()))


def _spelled(part: object) -> str:
    """Format a verdict as text, with the names of its class and fields in words."""
    if isinstance(part, int) and not isinstance(part, bool):
        return f"{part:#x}" if abs(part) >= ADDRESS else str(part)
    if not is_dataclass(part):
        return str(part)
    name = CAPITAL.sub(" ", type(part).__name__).lower()
    inner = [f"{field.name} {value}" if not is_dataclass(getattr(part, field.name)) else value
             for field in fields(part) if field.repr
             for value in [_spelled(getattr(part, field.name))]]
    return f"{name} ({', '.join(inner)})" if inner else name
