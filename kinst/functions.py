"""Which functions a probe description means."""

from emu.call import Caller
from emu.elf import STT_FUNC, STT_GNU_IFUNC, Symbol
from kinst.breakpoints import Breakpoints, ProbeError
from kinst.listing import excluded


def functions(breakpoints: Breakpoints, where: str, name: str) -> list[Symbol]:
    """The functions of that name: static functions of several files may share it.

    :param where: the probe description, for errors.
    :raises ProbeError: when there is none, or the trap path itself runs through it.
    """
    symbols = breakpoints.machine.image.symbols
    named = symbols.named(name)
    found = {s.address: s for s in named if s.kind == STT_FUNC and s.size}
    if not found and named:
        if named[0].kind == STT_GNU_IFUNC:
            chosen = _chosen(breakpoints, named[0])
            raise ProbeError(f"{where}: {name} is an ifunc, here it is {chosen}: probe that")
        raise ProbeError(f"{where}: {name} is no function with a size")
    if not found:
        near = symbols.similar(name)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ProbeError(f"{where}: the kernel has no function '{name}'{hint}")
    if excluded(breakpoints.trap, name):
        raise ProbeError(f"{where}: {name} is excluded: the trap path runs through it")
    return list(found.values())


def _chosen(breakpoints: Breakpoints, ifunc: Symbol) -> str:
    """The function an ifunc stands for on this machine."""
    machine = breakpoints.machine
    kept = machine.snapshot()
    try:
        address = Caller(machine).call(ifunc.address, [], ifunc.name)
    finally:
        machine.restore(kept)
    target = machine.image.symbols.function_at(address)
    return target.name if target is not None else f"{address:#x}"
