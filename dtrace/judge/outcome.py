"""What a D program printed, and the differences between two outcomes.

Where kinst-emu differs from dtrace(1) on purpose, ``DECISIONS`` says so; both texts are changed to
the same before they are compared.
"""

import difflib
import re
from dataclasses import dataclass

OUTPUT, ERRORS = "output", "errors"
HEAD = "CPU     ID                    FUNCTION:NAME\n"  # precedes rows with the numbers of probes
ROW = re.compile(r"(?m)^( *\d+) +\d+( +\S*:\S+ )")
# (where, pattern, replacement, why the texts differ)
DECISIONS = (
    (ERRORS, re.compile(r"(?m)^(dtrace: error .* )at (?:BPF|DIF) offset \d+$"), r"\1at offset N",
     "programs are compiled to BPF, not to DIF"),
    (ERRORS, re.compile(r"(?m)^(dtrace: error on enabled probe) ID \d+ \(ID \d+:"),
     r"\1 ID N (ID N:",
     "kdtrace numbers the clauses of one probe consecutively, and probes have other numbers"),
    (ERRORS, re.compile(r"(?m)^(dtrace: error .*: profile:::\S+ invalid address) \(0x[0-9a-f]+\)"),
     r"\1",
     "in an interrupt, FreeBSD's dtrace(1) names another address than the one that was read"),
    (ERRORS, re.compile(r"(?m)^(dtrace: error .*: invalid alignment) \(0x[0-9a-f]+\)"), r"\1",
     "the variables of a program have other addresses"),
    (ERRORS, re.compile(r"(?m)^dtrace: [a-z ]+ size lowered to \d+[kmg]?\n"), "",
     "the guest's dtrace(1) makes buffers smaller when the guest's memory is short"),
    (OUTPUT, ROW, r"\1 ID\2",
     "probes have other numbers"),
    (OUTPUT, re.compile(r"(?m)^IMPLEMENT ME: dtrace_getarg\r?\n"), "",
     "on riscv64, the kernel prints on the console that arg5 of ERROR is missing"),
    (ERRORS, re.compile(r"(?m)^(dtrace: (?:failed to compile )?script) .*?(?=: line | matched |$)"),
     r"\1 FILE", "the file has another name"),
)
# On arm64, FreeBSD's ERROR probe has no arg5, so dtrace(1) only counts the faults.
COUNTED = re.compile(r"(?m)^dtrace: (\d+) errors? in ERROR probe enabling\n")
FAULT = re.compile(r"(?m)^dtrace: error on enabled probe .*\n")
# Limits of dtrace(1)'s compiler that kdtrace does not have: such programs are not compared.
LIMITS = ("Insufficient registers to generate code", "Insufficient tuple registers")
ADDRESS = re.compile(r"(?m)^(dtrace: error .*: invalid address) \(0x[0-9a-f]+\)")
ALIGNMENT = ": invalid alignment"
MOST_LINES = 40  # maximum number of lines of a described difference


@dataclass(frozen=True)
class Outcome:
    """What came of one run of a D program.

    :param status: exit status; None: the program did not end.
    :param output: standard output.
    :param errors: standard error.
    """

    status: int | None
    output: str
    errors: str = ""

    @property
    def refused(self) -> bool:
        """Whether the program did not run, because it is not valid."""
        return self.status == 1 and not self.output and "dtrace: failed to compile" in self.errors

    @property
    def limited(self) -> bool:
        """Whether dtrace(1) refused the program for a limit that kdtrace does not have."""
        return self.status == 1 and any(limit in self.errors for limit in LIMITS)


def compared(text: str, where: str) -> str:
    """Return a text as it is compared: without what differs on purpose.

    :param where: ``OUTPUT`` or ``ERRORS``.
    """
    for place, pattern, replacement, _why in DECISIONS:
        if place == where and (pattern is not ROW or HEAD in text):
            text = pattern.sub(replacement, text)
    return text


def differences(theirs: Outcome, ours: Outcome, addresses: bool = True) -> list[str]:
    """Return lines that describe how outcomes differ: none if they agree.

    :param theirs: outcome of dtrace(1).
    :param ours: outcome of kdtrace.
    :param addresses: whether dtrace(1) names the address of a fault; on riscv64, where FreeBSD's
        ERROR probe has no arg5, it names 0.
    """
    lines = list[str]()
    if theirs.limited or unaligned(theirs, ours):
        return lines
    if theirs.status != ours.status:
        lines.append(f"exit status: dtrace(1) {_status(theirs)}, kdtrace {_status(ours)}")
    for what, one, other in ((OUTPUT, theirs.output, ours.output),
                             (ERRORS, *_with_counted_faults(theirs.errors, ours.errors))):
        if what == ERRORS and not addresses:
            one, other = ADDRESS.sub(r"\1", one), ADDRESS.sub(r"\1", other)
        one, other = compared(one, what), compared(other, what)
        if one != other:
            lines.append(f"{what} (- dtrace(1), + kdtrace):")
            changes = list(difflib.unified_diff(
                one.splitlines(), other.splitlines(), lineterm="", n=1))[2:]
            if not changes:  # only the ends of the lines differ
                changes = [f"-{one!r}", f"+{other!r}"]
            lines += [f"  {line}" for line in changes[:MOST_LINES]]
            if len(changes) > MOST_LINES:
                lines.append(f"  ... {len(changes) - MOST_LINES} more lines")
    return lines


def unaligned(theirs: Outcome, ours: Outcome) -> bool:
    """Return whether only dtrace(1) refused a load for its alignment, as it does on riscv64."""
    return theirs.errors.count(ALIGNMENT) > ours.errors.count(ALIGNMENT)


def _with_counted_faults(theirs: str, ours: str) -> tuple[str, str]:
    """Return errors without the faults if dtrace(1) only counts them, and counts as many."""
    counted = COUNTED.findall(theirs)
    if not counted or FAULT.search(theirs) or sum(map(int, counted)) != len(FAULT.findall(ours)):
        return theirs, ours
    return COUNTED.sub("", theirs), FAULT.sub("", ours)


def kinds(lines: list[str]) -> set[str]:
    """Return what differs, from the lines of ``differences``."""
    return {line.partition(":")[0].partition(" (")[0] for line in lines if line[:1] != " "}


def _status(outcome: Outcome) -> str:
    return "none (it did not end)" if outcome.status is None else str(outcome.status)
