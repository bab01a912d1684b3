"""Comparison of the module's verdicts with kinst-emu's on every instruction of a function."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from emu.elf.symbols import Symbol
from emu.host.errors import MemoryAccessError
from emu.machine.call import CallError
from kinst.code.listing import check_size, instructions
from kinst.relocation.verdict import Refuse
from kinst.verify.trial.architecture import Becomes
from kinst.verify.trial.trial import Trial

EXAMPLES = 5  # number of examples kept for each kind of difference
PROBES = 60_000  # number of probes created before the guest's memory is restored
LEFT_OUT = "function excluded by the module alone"
LOST = "the module panics or does not return"
LENGTH, OPERANDS, TARGET = "different length", "different operands", "different target"
OURS_ALONE = "function excluded by kinst-emu alone"


@dataclass(frozen=True)
class Example:
    """Example of a difference between the module and kinst-emu.

    :param place: ``function+offset``.
    :param theirs: verdict of the module.
    :param ours: verdict of kinst-emu.
    """

    place: str
    code: bytes
    theirs: str
    ours: str


@dataclass
class Verdicts:
    """Result of comparing the module's verdicts with kinst-emu's.

    :param agreed: number of instructions with the same verdict, by verdict.
    :param differences: number of differences by kind.
    :param examples: some examples for each kind of difference.
    :param functions: number of functions examined.
    :param left_out: number of functions excluded by both.
    :param errors: number of functions for which the module returned an error, by error number.
    """

    agreed: Counter[str] = field(default_factory=Counter)
    differences: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    functions: int = 0
    left_out: int = 0
    errors: Counter[int] = field(default_factory=Counter)

    def differ(self, kind: str, example: Example) -> None:
        """Count a difference, and keep it as an example unless enough examples are kept."""
        self.differences[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def merge(self, other: "Verdicts") -> None:
        """Add the results of another comparison."""
        self.agreed += other.agreed
        self.differences += other.differences
        self.errors += other.errors
        self.functions += other.functions
        self.left_out += other.left_out
        for kind, examples in other.examples.items():
            kept = self.examples.setdefault(kind, [])
            kept.extend(examples[: EXAMPLES - len(kept)])


# Function that compares one kernel function and returns the number of probes created
Compare = Callable[[Trial, Symbol, Verdicts], int]


def verdicts(trial: Trial, functions: Sequence[Symbol]) -> Iterator[Verdicts]:
    """Compare the verdicts on the instructions of functions; yield a result for each function."""
    return each(trial, functions, _compare)


def each(trial: Trial, functions: Sequence[Symbol], compare: Compare) -> Iterator[Verdicts]:
    """Compare functions one by one, and restore the guest's memory in between."""
    machine = trial.machine
    machine.restore(trial.base)
    made = 0
    for function in functions:
        if made > PROBES:
            machine.restore(trial.base)
            made = 0
        verdicts = Verdicts(functions=1)
        try:
            made += compare(trial, function, verdicts)
        except CallError as error:
            machine.restore(trial.base)
            made = 0
            verdicts.differ(LOST, Example(function.name, b"", str(error), ""))
        yield verdicts
    machine.restore(trial.base)


def _compare(trial: Trial, function: Symbol, found: Verdicts) -> int:
    """Compare the module's probes on a function with kinst-emu's; return the module's count."""
    check_size(function)
    try:
        code = trial.machine.read(function.address, function.size)
    except MemoryAccessError:
        found.left_out += 1
        return 0
    error = trial.module.make(function.name, function.address, function.size)
    probes = trial.module.probes(function.address, function.address + function.size)
    if error:
        found.errors[error] += 1
    excluded = trial.machine.guest.traps.exclusions.reason(function.name)
    if not probes:
        if excluded:
            found.left_out += 1
        else:
            found.differ(LEFT_OUT, Example(function.name, b"", f"no probe (error {error})"
                                           if error else "no probe", "probed"))
        return 0
    if excluded:
        found.differ(OURS_ALONE, Example(function.name, b"", f"{len(probes)} probes", excluded))
        return len(probes)
    ours = {i.address: i for i in instructions(trial.trap, code, function)}
    for address, i in ours.items():
        place = f"{function.name}+{i.offset}"
        mine = trial.arch.ours(i.code, i.verdict)
        reason = i.verdict.reason if isinstance(i.verdict, Refuse) else ""
        probe = probes.get(address)
        if probe is None:
            if mine.word == "refuse":
                found.agreed["refuse"] += 1
            else:
                found.differ(f"no probe by the module, {mine.word} by kinst-emu",
                             Example(place, i.code, "no probe", mine.word))
            continue
        theirs = trial.arch.becomes(trial.module.probe, probe)
        kind = kind_of(theirs, mine, len(i.code), reason)
        if kind:
            found.differ(kind, Example(place, i.code, _text(theirs), _text(mine)))
        else:
            found.agreed[theirs.word] += 1
    for address, probe in probes.items():
        if address not in ours:
            found.differ("probe where kinst-emu finds no instruction", Example(
                f"{function.name}+{address - function.address}", probe.data[:0],
                _text(trial.arch.becomes(trial.module.probe, probe)), "no instruction"))
    return len(probes)


def kind_of(theirs: Becomes, ours: Becomes, length: int, reason: str) -> str:
    """Return the kind of difference between two verdicts, or an empty string if they agree."""
    if theirs.length and theirs.length != length:
        return LENGTH
    if None not in (theirs.operands, ours.operands) and theirs.operands != ours.operands:
        return OPERANDS
    if None not in (theirs.target, ours.target) and theirs.target != ours.target:
        return TARGET
    if theirs.word != ours.word:
        return f"{theirs.word} by the module, {ours.word} by kinst-emu" + (f": it {reason}"
                                                                          if reason else "")
    return ""


def _text(one: Becomes) -> str:
    parts = [one.word]
    if one.target is not None:
        parts.append(f"target {one.target:#x}")
    if one.operands is not None:
        base, index, scale, displacement = one.operands
        parts.append(f"base {base}, index {index} * {scale}, displacement {displacement:#x}")
    return ", ".join(parts)
