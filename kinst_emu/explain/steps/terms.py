"""What the words of an explanation mean, each said where it is first needed."""

import re
from collections.abc import Sequence

from kinst_emu.explain.steps.step import Step, Table

TERMS = {
    "displaced": "the displaced instruction is the one that a breakpoint was written over",
    "DTrace": "what records on FreeBSD and illumos what a kernel does, by probes and the language "
              "D; kinst is its provider of probes at single instructions",
    "probe": "a name for an instruction at which something is to be recorded",
    "verdict": "what becomes of an instruction that a breakpoint is written over: copy, rewrite, "
               "emulate or refuse",
    "breakpoint": "an instruction whose only effect is an exception: INT3, BRK, EBREAK",
    "exception": "the CPU leaves what it executes, saves where it was, and goes on in the kernel",
    "vector": "where the CPU goes on at an exception: the kernel's code that saves the registers",
    "trap frame": "the registers of what was interrupted, in memory; they are loaded from there "
                  "when it goes on",
    "handler": "the function that the kernel's vector calls for a breakpoint: DTrace's, and here "
               "this program's",
    "fires": "a probe fires when its instruction is come to: what was asked for is done",
    "clause": "the part of a D program for a probe: a predicate, and actions",
    "predicate": "the condition of a clause, between slashes: where it does not hold, nothing is "
                 "done",
    "BPF": "the simple instructions that a clause is compiled to",
    "trampoline": "some bytes elsewhere where the instruction is executed that a breakpoint is "
                  "written over, and behind it what leads back",
    "copy": "the verdict of an instruction that does the same anywhere",
    "rewrite": "the verdict of an instruction that names a place by its distance: it is written "
               "anew, to mean the same elsewhere",
    "emulate": "the verdict of an instruction that would do something else elsewhere, as one that "
               "decides where the run goes on: its effect is carried out on the trap frame",
    "refuse": "the verdict of an instruction where no probe can be",
    "displacement": "the distance to something, counted from the instruction, which holds it",
    "second breakpoint": "the one behind a displaced instruction, which leads back from the "
                         "trampoline",
}


def first_terms(steps: Sequence[Step]) -> list[dict[str, str]]:
    """For each step the terms that no step before it has used, with their meanings."""
    open_terms = {term: re.compile(rf"(?i)\b{re.escape(term)}s?\b") for term in TERMS}
    found = []
    for step in steps:
        text = " ".join([step.title, *(
            " ".join((*part.heads, *(cell for row in part.rows for cell in row)))
            if isinstance(part, Table) else part for part in step.parts)])
        here = {term: TERMS[term] for term, wanted in open_terms.items() if wanted.search(text)}
        for term in here:
            del open_terms[term]
        found.append(here)
    return found
