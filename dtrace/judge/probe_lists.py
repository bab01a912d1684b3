"""Lists of probes of dtrace(1) and kdtrace, and the differences between them, with their reasons.

A difference without a known reason is a mistake of one of the two.  Reasons are checked against the
kernel's code, symbols and debug data where these can tell; what FreeBSD itself excludes or does not
describe by name is known by its name.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

Probe = tuple[str, ...]  # what precedes the name, without empty parts, and the name
Details = tuple[str, ...]  # the lines that -v adds for a probe
KERNEL = "kernel"
ARGUMENT = re.compile(r"args\[\d+\]: ")
NONE = "None"  # stands for no arguments
# System calls of older systems, or of none; the kernel has functions for some of them
OLD_CALL = re.compile(r"(?:compat\d*\.|obs_|#)")


class Facts(Protocol):
    """What reasons ask about the kernel."""

    def is_module(self, name: str) -> bool:
        """Return whether the guest may load a module of this name."""

    def in_a_module(self, word: str) -> bool:
        """Return whether a module that the guest may load contains a string."""

    def is_alias(self, function: str) -> bool:
        """Return whether a function has another name, too, or is an ifunc."""

    def several(self, function: str) -> bool:
        """Return whether several functions have a name."""

    def begins_refused(self, function: str) -> bool:
        """Return whether a function's first instruction cannot be probed."""

    def begins_with_loop(self, function: str) -> bool:
        """Return whether a jump leads to a function's first instruction."""

    def why_not(self, probe: Probe) -> str:
        """Return why kdtrace has no such probe; "" if it has, when it is named in full."""

    def is_assembly(self, function: str) -> bool:
        """Return whether the debug data does not describe a function."""

    def only_jumps_out(self, function: str) -> bool:
        """Return whether a function has no return instruction."""

    def returns_before_frame(self, function: str) -> bool:
        """Return whether a function returns only before it saves its caller's frame."""

    def contains(self, function: str, mnemonic: str) -> bool:
        """Return whether a function has an instruction whose mnemonic begins with a text."""

    def mnemonic(self, function: str, offset: int) -> str:
        """Return the mnemonic of an instruction."""

    def same_type(self, one: str, other: str) -> bool:
        """Return whether two names of types mean the same type of the kernel."""

    def is_known(self, call: str) -> bool:
        """Return whether the kernel contains the function of a system call."""


@dataclass(frozen=True)
class Reason:
    """Why only one of the lists has a probe, or why its details differ.

    :param applies: returns whether it is the reason for a probe.
    """

    text: str
    applies: Callable[[Probe, Facts], bool]


def _kdtrace_says(pattern: str) -> Callable[[Probe, Facts], bool]:
    return lambda probe, facts: re.search(pattern, facts.why_not(probe)) is not None


ONLY_THEIRS = (
    Reason("the guest has loaded this module; kdtrace traces only modules given with --module",
           lambda probe, facts: probe[0] in ("fbt", "kinst") and facts.is_module(probe[1])),
    Reason("a malloc type of a module that the guest has loaded",
           lambda probe, facts: probe[0] == "dtmalloc" and facts.in_a_module(probe[1])),
    Reason("a provider that is a module of the guest",
           lambda probe, facts: facts.is_module(f"dt{probe[0]}")),
    Reason("excluded: DTrace itself may run through the function; kdtrace needs --unsafe",
           _kdtrace_says("is excluded")),
    Reason("a loop begins at the function's first instruction, so the probe would fire in each "
           "round",
           lambda probe, facts: _kdtrace_says("no matching function has an instruction")(
               probe, facts) and facts.begins_with_loop(probe[2])),
    Reason("the function's first instruction cannot be probed; dtrace(1) probes another one",
           lambda probe, facts: _kdtrace_says("no matching function has an instruction")(
               probe, facts) and facts.begins_refused(probe[2])),
    Reason("the instruction raises an exception (smc), so kdtrace does not probe it",
           lambda probe, facts: probe[0] == "kinst" and _kdtrace_says("raises an exception")(
               probe, facts)),
    Reason("another name of a function, or an ifunc; kdtrace lists one name, and accepts all",
           lambda probe, facts: not facts.why_not(probe) and facts.is_alias(probe[2])),
)
ONLY_OURS = (
    Reason("excluded by name: FreeBSD's own stack() runs through the function",
           lambda probe, _facts: probe[0] == "fbt" and probe[2] == "unwind_frame"),
    Reason("assembly that sets up no frame, which dtrace(1) does not recognize as a function",
           lambda probe, facts: probe[0] in ("fbt", "kinst") and facts.is_assembly(probe[2])),
    Reason("the function ends with jumps to other functions (tail calls); dtrace(1) knows only "
           "return instructions",
           lambda probe, facts: probe[0] == "fbt" and probe[-1] == "return"
           and facts.only_jumps_out(probe[2])),
    Reason("the function returns only before it sets up a frame, and dtrace(1) looks for returns "
           "after that",
           lambda probe, facts: probe[0] == "fbt" and probe[-1] == "return"
           and facts.returns_before_frame(probe[2])),
    Reason("the function has an instruction that FreeBSD's decoder does not know (xstore)",
           lambda probe, facts: probe[0] == "fbt" and probe[-1] == "return"
           and facts.contains(probe[2], "xstore")),
    Reason("adr or adrp, which FreeBSD's kinst refuses",
           lambda probe, facts: probe[0] == "kinst" and probe[-1].isdecimal()
           and facts.mnemonic(probe[2], int(probe[-1])) in ("adr", "adrp")),
)


def parse(text: str) -> dict[Probe, list[Details]]:
    """Return the probes of a list of a base system; several may have the same name.

    A line that begins with a blank has what precedes the names, a comma, and the names; a line that
    begins with ``=`` is a detail of the last probe.  All others are messages, also of the kernel.

    :raises ValueError: when the text is not such a list.
    """
    found: dict[Probe, list[Details]] = {}
    last: Probe = ()
    for line in text.splitlines():
        if line[:1] not in (" ", "="):
            continue
        if line[0] == "=":
            if not last:
                raise ValueError("details without a probe")
            found[last][-1] += (line[1:].strip(),)
            continue
        place, comma, names = line.rpartition(",")
        if not comma:
            raise ValueError(f"not a line of a list of probes: {line[:80]}")
        for name in names.split():
            last = (*place.split(), name)
            found.setdefault(last, []).append(())
    return found


def parse_plain(text: str) -> dict[Probe, list[Details]]:
    """Return the probes of a list as ``dtrace -l`` prints it; details are as in ``parse``."""
    found: dict[Probe, list[Details]] = {}
    last: Probe = ()
    for line in text.splitlines():
        words = line.split()
        if line[:1] == "\t" and last:
            found[last][-1] += (line.strip(),)
        elif len(words) > 2 and words[0].isdecimal():
            last = tuple(words[1:])
            found.setdefault(last, []).append(())
    return found


@dataclass
class Compared:
    """Differences between lists of a provider's probes.

    :ivar theirs: number of the probes that dtrace(1) lists.
    :ivar ours: number of those that kdtrace lists.
    :ivar equal: number of those with equal names and details.
    :ivar explained: (what differs, reason) -> number of probes.
    :ivar unknown: what differs for no known reason, as lines.
    """

    theirs: int = 0
    ours: int = 0
    equal: int = 0
    explained: dict[tuple[str, str], int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def add(self, what: str, probe: Probe, reasons: Iterable[str], shown: str) -> None:
        """Add a difference; without a reason, it is unknown."""
        reason = next(iter(reasons), None)
        if reason is None:
            self.unknown.append(f"{' '.join(probe)}: {shown}")
        else:
            self.explained[what, reason] = self.explained.get((what, reason), 0) + 1

    def join(self, other: "Compared") -> None:
        """Add the differences between other lists."""
        self.theirs += other.theirs
        self.ours += other.ours
        self.equal += other.equal
        for key, count in other.explained.items():
            self.explained[key] = self.explained.get(key, 0) + count
        self.unknown += other.unknown


def compare(theirs: dict[Probe, list[Details]], ours: dict[Probe, list[Details]], facts: Facts
            ) -> dict[str, Compared]:
    """Compare two lists; return the differences, keyed by provider."""
    found: dict[str, Compared] = {}
    for probe in dict.fromkeys((*theirs, *ours)):
        one, other = theirs.get(probe, []), ours.get(probe, [])
        compared = found.setdefault(probe[0], Compared())
        compared.theirs += len(one)
        compared.ours += len(other)
        for _ in range(len(one) - len(other)):
            compared.add("only dtrace(1)", probe, (
                r.text for r in ONLY_THEIRS
                if (not other or _several(probe, facts)) and r.applies(probe, facts)),
                "only dtrace(1) lists it")
        for _ in range(len(other) - len(one)):
            compared.add("only kdtrace", probe, (
                r.text for r in ONLY_OURS
                if (not one or _several(probe, facts)) and r.applies(probe, facts)),
                "only kdtrace lists it")
        for first, second in zip(one, other, strict=False):
            if first == second:
                compared.equal += 1
                continue
            native = ours.get(("syscall", "freebsd", *probe[2:]), [()])[0]
            compared.add("details", probe,
                         _why_details(probe, first, second, theirs, native, facts),
                         f"dtrace(1): {_shown(first)}; kdtrace: {_shown(second)}")
    return found


def _several(probe: Probe, facts: Facts) -> bool:
    return probe[0] == "fbt" and facts.several(probe[2])


def _arguments(details: Details) -> Details:
    return tuple(line for line in details if ARGUMENT.match(line))


def _types(arguments: Details) -> list[str]:
    return [ARGUMENT.sub("", line).removeprefix("userland ") for line in arguments]


def _shown(details: Details) -> str:
    return ", ".join(_arguments(details)) or "no arguments"


def _why_details(probe: Probe, theirs: Details, ours: Details,
                 all_theirs: dict[Probe, list[Details]], native: Details, facts: Facts
                 ) -> Iterable[str]:
    """Yield reasons why the details of a probe differ.

    :param native: what kdtrace lists for the system call of the same name in 64-bit programs.
    """
    types = {line for line in (*theirs, *ours) if ARGUMENT.match(line) or line == NONE}
    if any(line not in types for line in {*theirs} ^ {*ours}):
        return
    if probe[0] == "syscall":
        if OLD_CALL.match(probe[2]) and NONE in theirs:
            yield "a system call of an older system, which FreeBSD does not describe"
        alone = all_theirs.get((*probe[:-1], "entry"), [()])[0]
        if probe[-1] == "return" and NONE in alone and ours and not _arguments(alone):
            yield ("the return type of a system call without arguments, for which FreeBSD gives "
                   "that of the next system call")
        if NONE in ours and (probe[1] == "freebsd32" or not facts.is_known(probe[2])):
            yield "a system call of a module, which has no function in the kernel's table"
        one, other = _arguments(theirs), _arguments(ours)
        if probe[1] == "freebsd32" and len(one) == len(other) and ours == native:
            yield "the type in a 32-bit program; kdtrace gives that of the kernel's function"
        if len(one) == len(other) and all(map(facts.same_type, _types(one), _types(other))):
            yield "another name of the same type"
    if any(line.endswith("(unknown)") for line in theirs):
        yield "dtrace(1) does not know the type, which it reads only with the module"
