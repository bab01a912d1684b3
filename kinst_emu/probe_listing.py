"""``kdtrace -l``: the probes that there are, and with ``-v`` what is none, and why."""

from collections.abc import Callable, Iterator, Sequence

from dtrace.d.attributes import of_probe
from dtrace.d.program import ListedProbe
from dtrace.run.kernel import KernelProbes
from dtrace.run.timers import OwnProbes
from emu.symbols import KERNEL
from kinst.code.verdict import Refuse
from kinst_emu.json_lines import JsonLines

HEADER = f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME"


def every_probe(probes: OwnProbes | KernelProbes) -> Sequence[ListedProbe]:
    """DTrace's own, and with a kernel all of fbt's and the static ones."""
    if isinstance(probes, KernelProbes):
        return [*probes.own.probes, *probes.match(("fbt", "", "", "")), *probes.static()]
    return probes.probes


def show(listed: Sequence[ListedProbe], as_json: bool,
         arguments: Callable[[ListedProbe], list[str]] | None = None) -> None:
    """Print a list of probes.

    :param arguments: gives the types of a probe's arguments, which are printed, too, with what is
        promised of them.
    """
    if as_json:
        lines = JsonLines()
        for p in listed:
            lines.row({"id": p.number, "provider": p.provider, "module": p.module,
                       "function": p.function, "name": p.name}
                      | ({} if arguments is None else {"arguments": [*arguments(p)]}))
        return
    print(HEADER)
    for p in listed:
        print(f"{p.number:5d} {p.provider:>10} {p.module:>17} {p.function:>33} {p.name}")
        if arguments is not None:
            print(_details(p.provider, arguments(p)))


def _details(provider: str, types: list[str]) -> str:
    """What dtrace(1) prints of a probe with -v: an empty line is before and behind it."""
    text = ""
    for title, value in zip(("Probe Description", "Argument"), of_probe(provider), strict=True):
        names, data, depends = value.split("/")
        text += (f"\n\t{title} Attributes\n\t\tIdentifier Names: {names}\n"
                 f"\t\tData Semantics:   {data}\n\t\tDependency Class: {depends}\n")
    shown = [f"args[{n}]: {kind}" for n, kind in enumerate(types)] or ["None"]
    return f"{text}\n\tArgument Types\n" + "".join(f"\t\t{line}\n" for line in shown)


def show_left_out(probes: KernelProbes, as_json: bool) -> None:
    """Print what is not probed in the functions of the probes that were made."""
    lines = JsonLines()
    for module, function, offset, instruction, reason in _left_out(probes):
        if as_json:
            lines.row({"not_probed": function, "offset": offset, "instruction": instruction,
                       "reason": reason})
        elif offset is None:
            print(f"not probed: {module}:{function}: the function {reason}")
        else:
            print(f"not probed: kinst:{module}:{function}:{offset} ({instruction}): {reason}")


def _left_out(probes: KernelProbes) -> Iterator[tuple[str, str, int | None, str | None, str]]:
    """(module, function, offset, instruction, reason); a whole function has neither of two."""
    table = probes.breakpoints
    for function in table.kernel_functions:
        for i in table.instructions(function):
            if isinstance(i.verdict, Refuse):
                yield (function.module_name, function.name, i.offset,
                       table.arch.disassemble(i.code, i.address), i.verdict.reason)
    for name, reason in table.left_out.items():
        yield KERNEL, name, None, None, reason
