"""Comparison of the entries and returns that fbt.ko and kinst-emu find in functions."""

from collections.abc import Iterator, Sequence

from emu.elf.symbols import Symbol
from emu.host.errors import MemoryAccessError
from kinst.code.listing import ProbedInstruction, check_size, instructions
from kinst.providers import fbt
from kinst.verify.trial.fbt_module import FbtModule
from kinst.verify.trial.trial import Trial
from kinst.verify.trial.verdicts import LEFT_OUT, OURS_ALONE, Example, Verdicts, each


def fbt_verdicts(trial: Trial, functions: Sequence[Symbol]) -> Iterator[Verdicts]:
    """Compare the entries and returns of functions; yield a result for each function."""
    return each(trial, functions, _compare)


def sites(trial: Trial, function: Symbol) -> tuple[ProbedInstruction | None,
                                                    list[ProbedInstruction]]:
    """Return the entry and the returns that kinst-emu finds in a function.

    :raises MemoryAccessError: if the function is not mapped.
    """
    check_size(function)
    code = trial.machine.read(function.address, function.size)
    table = list(instructions(trial.trap, code, function))
    return fbt.entry(trial.trap, function, table), fbt.returns(trial.trap, function, table)


def _compare(trial: Trial, function: Symbol, found: Verdicts) -> int:
    assert isinstance(trial.module, FbtModule)
    try:
        entry, returns = sites(trial, function)
    except MemoryAccessError:
        found.left_out += 1
        return 0
    trial.module.make(function.name, function.address, function.size)
    probes = trial.module.probes(function.address, function.address + function.size)
    excluded = trial.machine.guest.traps.exclusions.reason(function.name)
    if not probes or excluded:
        if not probes and (excluded or entry is None):
            found.left_out += 1
        else:
            found.differ(OURS_ALONE if probes else LEFT_OUT, Example(
                function.name, b"", f"{len(probes)} probes", excluded or "probed"))
        return len(probes)
    theirs = {address: trial.module.is_return(probe) for address, probe in probes.items()}
    ours = {i.address: i for i in returns}
    entries = [address for address, is_return in theirs.items() if not is_return]
    if entry is not None and entries == [entry.address]:
        found.agreed["entry"] += 1
    else:
        entry_text = f"+{entry.offset}" if entry is not None else "none"
        text = ", ".join(f"+{address - function.address}" for address in entries)
        found.differ("different entry", Example(function.name, entry.code if entry else b"", text,
                                              entry_text))
    for address, is_return in theirs.items():
        if is_return and address in ours:
            found.agreed["return"] += 1
        elif is_return:
            found.differ("return found by the module alone", Example(
                f"{function.name}+{address - function.address}", b"", "return", "none"))
    for address, i in ours.items():
        if address not in theirs:
            kind = ("return found by kinst-emu alone" if trial.trap.instructions.is_return(i.code)
                    else "jump out of the function that only kinst-emu takes for a return")
            found.differ(kind, Example(f"{function.name}+{i.offset}", i.code, "none", "return"))
    return len(probes)
