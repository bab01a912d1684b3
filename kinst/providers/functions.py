"""Which functions a probe description means."""

from emu.elf.symbols import KERNEL, STT_FUNC, STT_GNU_IFUNC, Symbol
from emu.machine.call import Caller
from emu.unicorn.machine import UnicornMachine
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.providers.patterns import is_glob, matches, regular


def functions(
    breakpoints: ProbeTable, where: str, name: str, unsafe: bool = False, module: str = ""
) -> list[Symbol]:
    """The functions a name or pattern stands for: static functions of several files may share one
    name.  By pattern, those the trap path itself runs through are left out.

    :param where: the probe description, for errors.
    :param unsafe: excluded functions, too.
    :param module: a name or pattern of the module that they are of; empty: of any.
    :raises ProbeError: when there is none, or a name is that of an excluded one.
    """
    if is_glob(name):
        return _by_pattern(breakpoints, where, name, unsafe, module)
    symbols = breakpoints.image.symbols
    named = [s for s in symbols.named(name) if matches(module, s.module_name)]
    found = {s.address: s for s in named if s.kind == STT_FUNC and s.size}
    if not found and named:
        if named[0].kind == STT_GNU_IFUNC:
            chosen = _chosen(breakpoints, named[0])
            raise ProbeError(f"{where}: {name} is an ifunc, here it is {chosen}: probe that")
        raise ProbeError(f"{where}: {name} is no function with a size")
    if not found:
        near = symbols.similar(name)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ProbeError(f"{where}: {_there(module)} no function '{name}'{hint}")
    reason = breakpoints.machine.guest.traps.exclusions.reason(name)
    if reason and not unsafe:
        raise ProbeError(f"{where}: {name} {reason} (--unsafe probes it)")
    return list(found.values())


def _by_pattern(
    breakpoints: ProbeTable, where: str, pattern: str, unsafe: bool, module: str
) -> list[Symbol]:
    accept = regular(pattern).match
    exclusions = breakpoints.machine.guest.traps.exclusions
    found: dict[int, Symbol] = {}
    for s in breakpoints.image.symbols.functions():
        if accept(s.name) and matches(module, s.module_name):
            reason = "" if unsafe else exclusions.reason(s.name)
            if reason:
                breakpoints.left_out[s.name] = reason
            else:
                found.setdefault(s.address, s)
    if not found:
        raise ProbeError(f"{where}: no function matches '{pattern}'")
    return list(found.values())


def _there(module: str) -> str:
    return f"the module {module} has" if module and not is_glob(module) and module != KERNEL else (
        "the kernel has")


def _chosen(breakpoints: ProbeTable, ifunc: Symbol) -> str:
    """The function an ifunc stands for on this machine."""
    machine = breakpoints.machine
    kept = machine.snapshot() if isinstance(machine, UnicornMachine) else None
    try:
        address = Caller(machine).call(ifunc.address, [], ifunc.name)
    finally:
        if kept is not None and isinstance(machine, UnicornMachine):
            machine.restore(kept)
    target = machine.image.symbols.function_at(address)
    return target.name if target is not None else f"{address:#x}"
