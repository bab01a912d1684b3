"""Functions that a probe description selects."""

from emu.elf.symbols import KERNEL, STT_FUNC, STT_GNU_IFUNC, Symbol
from emu.machine.call import Caller
from emu.unicorn.machine import UnicornMachine
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.providers.patterns import is_glob, matches, regular


def functions(
    breakpoints: ProbeTable, where: str, name: str, unsafe: bool = False, module: str = ""
) -> list[Symbol]:
    """Return the functions that a name or a pattern selects.

    Static functions of several files may share one name.  Patterns do not select excluded
    functions, through which the trap path itself runs.

    The name of an ifunc selects the function to which the ifunc resolves on this machine.

    :param where: the probe description, for error messages.
    :param unsafe: whether to select excluded functions, too.
    :param module: name or pattern of the functions' module; empty for all.
    :raises ProbeError: when no function is selected, or the name is that of an excluded function.
    """
    if is_glob(name):
        return _by_pattern(breakpoints, where, name, unsafe, module)
    symbols = breakpoints.image.symbols
    named = [s for s in symbols.named(name) if matches(module, s.module_name)]
    selected = {s.address: s for s in named if s.kind == STT_FUNC and s.size}
    if not selected and named:
        if named[0].kind != STT_GNU_IFUNC:
            raise ProbeError(f"{where}: {name} is not a function, or has no size")
        chosen = _chosen(breakpoints, where, named[0])
        selected = {chosen.address: chosen}
    if not selected:
        advice = symbols.advice(name)
        raise ProbeError(f"{where}: {_there(module)} no function '{name}'"
                         + (f"; {advice}" if advice else ""))
    for one in dict.fromkeys((name, *(symbol.name for symbol in selected.values()))):
        reason = breakpoints.machine.guest.traps.exclusions.reason(one)
        if reason and not unsafe:
            raise ProbeError(f"{where}: {one} {reason} (use --unsafe to probe it)")
    return list(selected.values())


def _by_pattern(
    breakpoints: ProbeTable, where: str, pattern: str, unsafe: bool, module: str
) -> list[Symbol]:
    accept = regular(pattern).match
    exclusions = breakpoints.machine.guest.traps.exclusions
    selected: dict[int, Symbol] = {}
    for s in breakpoints.image.symbols.functions():
        if accept(s.name) and matches(module, s.module_name):
            reason = "" if unsafe else exclusions.reason(s.name)
            if reason:
                breakpoints.left_out[s.name] = reason
            else:
                selected.setdefault(s.address, s)
    if not selected:
        incomplete = breakpoints.image.symbols.incomplete
        raise ProbeError(f"{where}: no function matches '{pattern}'"
                         + (f"; {incomplete}" if incomplete else ""))
    return list(selected.values())


def _there(module: str) -> str:
    return f"the module {module} has" if module and not is_glob(module) and module != KERNEL else (
        "the kernel has")


def _chosen(breakpoints: ProbeTable, where: str, ifunc: Symbol) -> Symbol:
    """Return the function to which an ifunc resolves on this machine.

    :raises ProbeError: if there is no such function.
    """
    machine = breakpoints.machine
    snapshot = machine.snapshot() if isinstance(machine, UnicornMachine) else None
    try:
        address = Caller(machine).call(ifunc.address, [], ifunc.name)
    finally:
        if snapshot is not None and isinstance(machine, UnicornMachine):
            machine.restore(snapshot)
    target = machine.image.symbols.function_at(address)
    if target is None or target.address != address or not target.size:
        raise ProbeError(f"{where}: {ifunc.name} is an ifunc that resolves to {address:#x}, where "
                         "no function begins")
    return target
