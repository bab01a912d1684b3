"""``kdtrace -l``: the probes that there are, and with ``-v`` what is none, and why."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from dtrace.d.compile.program import Compiled, ListedProbe
from dtrace.d.language import syntax
from dtrace.d.language.attributes import (
    USUAL,
    least,
    of_description,
    of_names,
    of_probe,
    of_provider,
)
from dtrace.run.kernel import KernelProbes
from dtrace.run.timers import OwnProbes
from emu.elf.symbols import KERNEL
from kinst.relocation.verdict import Refuse
from kinst_emu.terminal.json_lines import JsonLines

MOST_OF_A_REASON = 200  # instructions that are listed one by one
ArgumentTypes = Callable[[ListedProbe], list[str]]
HEADER = f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME"


def every_probe(probes: OwnProbes | KernelProbes) -> Sequence[ListedProbe]:
    """DTrace's own, and with a kernel all of fbt's and the static ones."""
    if isinstance(probes, KernelProbes):
        return [*probes.own.probes, *probes.match(("fbt", "", "", "")), *probes.static()]
    return probes.probes


def show(listed: Sequence[ListedProbe], as_json: bool,
         arguments: ArgumentTypes | None = None) -> None:
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
            print(_details(p, arguments(p)))


def _attributes(title: str, value: str) -> str:
    names, data, depends = value.replace("Isa", "ISA").split("/")
    return (f"\n\t{title} Attributes\n\t\tIdentifier Names: {names}\n"
            f"\t\tData Semantics:   {data}\n\t\tDependency Class: {depends}\n")


def stability(what: str, shown: str, compiled: Sequence[Compiled]) -> str:
    """The report that dtrace(1) prints with -v for each program: the least attributes of its probe
    descriptions, and of what its statements use.

    :param what: "script" or "description"; ``shown``: the script's name, or the descriptions.
    """
    descriptions, statements = [USUAL], [USUAL]
    for one in compiled:
        if one.function.clause.hidden:
            continue
        parts = (["", "", "", *one.function.specifier.text.split(":")])[-4:]
        descriptions.append(of_description(*parts))
        statements.append(of_names(_names(one.function.clause), of_provider(parts[0])[4]))
    return (f"\nStability attributes for {what} {shown}:\n"
            + _attributes("Minimum Probe Description", least(*descriptions))
            + _attributes("Minimum Statement", least(*statements)))


def show_clauses(compiled: Sequence[Compiled],
                 arguments: ArgumentTypes) -> None:
    """Print each description of a program, and what is promised of its probe where it has just one.
    """
    for one in compiled:
        if one.function.clause.hidden:
            continue
        parts = (["", "", "", *one.function.specifier.text.split(":")])[-4:]
        print("\n" + ":".join(parts))
        if len(one.probes) == 1:
            print(_details(one.probes[0], arguments(one.probes[0])), end="")


def _names(node: object) -> Iterator[str]:
    """The names of variables in a tree."""
    if isinstance(node, syntax.Name):
        yield node.name
    elif isinstance(node, list | tuple):
        for part in node:
            yield from _names(part)
    elif dataclasses.is_dataclass(node) and type(node).__module__ == syntax.__name__:
        for member in dataclasses.fields(node):
            yield from _names(getattr(node, member.name))


def _details(probe: ListedProbe, types: list[str]) -> str:
    """What dtrace(1) prints of a probe with -v: an empty line is before and behind it."""
    text = ""
    promised = of_probe(probe.provider, probe.module, probe.function, probe.name)
    for title, value in zip(("Probe Description", "Argument"), promised, strict=True):
        text += _attributes(title, value)
    shown = [f"args[{n}]: {kind}" for n, kind in enumerate(types)] or ["None"]
    return f"{text}\n\tArgument Types\n" + "".join(f"\t\t{line}\n" for line in shown)


def show_left_out(probes: KernelProbes, listed: Sequence[ListedProbe], as_json: bool) -> None:
    """Print what is not probed in the functions of some probes, and the jumps out of them that are
    not followed to the function's return.  Instructions of one reason that are very many are
    counted, but for programs."""
    lines, found = JsonLines(), list(_left_out(probes, listed))
    many = {reason: count for reason, count in Counter(
        reason for _m, _f, offset, _i, reason in found if offset is not None).items()
        if count > MOST_OF_A_REASON}
    for reason, count in (() if as_json else many.items()):
        print(f"not probed: {count} instructions: each {reason} (kinst disas FUNCTION shows them)")
    for module, function, offset, instruction, reason in found:
        if not as_json and offset is not None and reason in many:
            continue
        if as_json:
            lines.row({"not_probed": function, "offset": offset, "instruction": instruction,
                       "reason": reason})
        elif offset is None:
            print(f"not probed: {module}:{function}: the function {reason}")
        else:
            print(f"not probed: kinst:{module}:{function}:{offset} ({instruction}): {reason}")


def _left_out(probes: KernelProbes, listed: Sequence[ListedProbe]
              ) -> Iterator[tuple[str, str, int | None, str | None, str]]:
    """(module, function, offset, instruction, reason); a whole function has neither of two."""
    table = probes.breakpoints
    by_instruction = {(p.module, p.function) for p in listed if p.provider == "kinst"}
    for function in table.kernel_functions:
        if (function.module_name, function.name) not in by_instruction:
            continue  # fbt has told why it has no entry or return there
        for i in table.instructions(function):
            if isinstance(i.verdict, Refuse):
                yield (function.module_name, function.name, i.offset,
                       table.arch.disassemble(i.code, i.address), i.verdict.reason)
    for name, reason in table.left_out.items():
        yield KERNEL, name, None, None, reason
    for name, jumps in table.not_followed.items():
        yield KERNEL, name, None, None, f"has jumps that are no returns: {'; '.join(jumps)}"
