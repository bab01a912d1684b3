"""Definitions of technical terms, each shown at the first step that uses the term."""

import re
from collections.abc import Sequence

from kinst_emu.explain.steps.step import Step, Table

TERMS = {
    "displaced": "the displaced instruction is the one that a breakpoint has overwritten",
    "DTrace": "the tracing framework of FreeBSD and illumos, which records what a kernel does by "
              "probes and the language D; kinst is its provider of probes at single instructions",
    "probe": "a named instruction at which something is recorded",
    "verdict": "what kinst does with an instruction that a breakpoint overwrites: copy, rewrite, "
               "emulate or refuse",
    "breakpoint": "an instruction whose only effect is an exception: INT3, BRK, EBREAK",
    "exception": "the CPU interrupts the running code, saves its address, and continues in the "
                 "kernel",
    "vector": "the kernel code that the CPU executes first after an exception; it saves the "
              "registers",
    "trap frame": "the registers of the interrupted code, saved in memory; they are loaded from "
                  "there when it resumes",
    "handler": "the function that the kernel's vector calls for a breakpoint: normally DTrace's, "
               "here this program's",
    "fires": "a probe fires when its instruction is reached: its clauses are run",
    "clause": "the part of a D program for one probe: a predicate and actions",
    "predicate": "the condition of a clause, between slashes; if it is false, no action is taken",
    "BPF": "the simple instruction set to which a clause is compiled",
    "trampoline": "a short piece of code elsewhere that executes the displaced instruction and "
                  "then leads back",
    "copy": "the verdict on an instruction that does the same at any address",
    "rewrite": "the verdict on an instruction that refers to a place by its distance: it is "
               "changed so that it means the same elsewhere",
    "emulate": "the verdict on an instruction that would act differently elsewhere, such as a "
               "branch: its effect is carried out on the trap frame",
    "refuse": "the verdict on an instruction that cannot be probed",
    "displacement": "the distance from an instruction to an address, as encoded in the instruction",
    "second breakpoint": "the breakpoint after a displaced instruction, which leads back from the "
                         "trampoline",
}


def first_terms(steps: Sequence[Step]) -> list[dict[str, str]]:
    """Return the terms that first appear in each step, together with their definitions."""
    open_terms = {term: re.compile(rf"(?i)\b{re.escape(term)}s?\b") for term in TERMS}
    result = []
    for step in steps:
        text = " ".join([step.title, *(
            " ".join((*part.heads, *(cell for row in part.rows for cell in row)))
            if isinstance(part, Table) else part for part in step.parts)])
        here = {term: TERMS[term] for term, wanted in open_terms.items() if wanted.search(text)}
        for term in here:
            del open_terms[term]
        result.append(here)
    return result
