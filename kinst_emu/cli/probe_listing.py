"""Lists of probes for ``kdtrace -l``; ``-v`` adds code that cannot be probed, with reasons."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from dtrace.d.compile.program import Compiled, ListedProbe, ManyProbes, counted_once
from dtrace.d.language import syntax
from dtrace.d.language.attributes import (
    USUAL,
    least,
    of_description,
    of_names,
    of_probe,
    of_provider,
)
from dtrace.run.instruction_probes import InstructionProbes
from dtrace.run.kernel_probes import KernelProbes
from dtrace.run.timers import OwnProbes
from emu.elf.symbols import KERNEL
from kinst.relocation.verdict import Refuse
from kinst_emu.terminal.json_lines import JsonLines

MOST_OF_A_REASON = 200  # maximum number of refused instructions listed for each reason
ArgumentTypes = Callable[[ListedProbe], list[str]]
HEADER = f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME"


def every_probe(probes: OwnProbes | KernelProbes) -> Sequence[ListedProbe]:
    """Return DTrace's own probes and, with a kernel, all fbt and static probes."""
    if isinstance(probes, KernelProbes):
        return [*probes.own.probes, *distinct(probes.match(("fbt", "", "", ""))),
                *probes.static()]
    return probes.probes


def distinct(probes: Sequence[ListedProbe]) -> Sequence[ListedProbe]:
    """Return probes without further places of the same probe."""
    if isinstance(probes, ManyProbes):
        return probes
    first: dict[int, ListedProbe] = {}
    for probe in probes:
        first.setdefault(probe.id, probe)
    return list(first.values())


def show(lists: Sequence[Sequence[ListedProbe]], as_json: bool,
         arguments: ArgumentTypes | None = None) -> None:
    """Print lists of probes, one after the other.

    :param as_json: print one JSON object per probe.
    :param arguments: returns the argument types of a probe; when given, they and the stability of
        each probe are printed, too.
    """
    if as_json:
        lines = JsonLines()
        for p in itertools.chain.from_iterable(lists):
            lines.row({"id": p.id, "provider": p.provider, "module": p.module,
                       "function": p.function, "name": p.name}
                      | ({} if arguments is None else {"arguments": [*arguments(p)]}))
        return
    print(HEADER)
    for listed in lists:
        if isinstance(listed, InstructionProbes) and arguments is None:
            _show_instructions(listed)
            continue
        for p in listed:
            details = "" if arguments is None else "\n" + _details(p, arguments(p))
            print(f"{p.id:5d} {p.provider:>10} {p.module:>17} {p.function:>33} {p.name}{details}")


def _show_instructions(listed: InstructionProbes) -> None:
    """Print many probes, a function at a time."""
    numbers = listed.numbers
    for function, first, offsets in listed.runs():
        rest = f" {'kinst':>10} {function.module_name:>17} {function.name:>33} "
        print("\n".join([f"{number:5d}{rest}{offset}" for number, offset in zip(
            numbers[first : first + len(offsets)], offsets, strict=True)]))


def _attributes(title: str, value: str) -> str:
    names, data, depends = value.replace("Isa", "ISA").split("/")
    return (f"\n\t{title} Attributes\n\t\tIdentifier Names: {names}\n"
            f"\t\tData Semantics:   {data}\n\t\tDependency Class: {depends}\n")


def stability(what: str, shown: str, compiled: Sequence[Compiled]) -> str:
    """Return the stability report that dtrace(1) prints with -v for each program.

    The report contains the minimum attributes of the probe descriptions and of the statements.

    :param what: "script" or "description".
    :param shown: the script's name, or the descriptions.
    """
    descriptions, statements = [USUAL], [USUAL]
    for clause in compiled:
        if clause.function.clause.hidden:
            continue
        provider, module, function, name = (
            ["", "", "", *clause.function.specifier.text.split(":")])[-4:]
        declared = clause.probes[0].promised if clause.probes else ()
        descriptions.append(of_description(provider, module, function, name, declared))
        statements.append(of_names(_names(clause.function.clause),
                                   of_provider(provider, declared)[4]))
    return (f"\nStability attributes for {what} {shown}:\n"
            + _attributes("Minimum Probe Description", least(*descriptions))
            + _attributes("Minimum Statement", least(*statements)))


def show_clauses(compiled: Sequence[Compiled],
                 arguments: ArgumentTypes) -> None:
    """Print each clause's probe description, and the probe's details if only one probe matches."""
    for clause in compiled:
        if clause.function.clause.hidden:
            continue
        parts = (["", "", "", *clause.function.specifier.text.split(":")])[-4:]
        print("\n" + ":".join(parts))
        if counted_once(clause.probes) == 1:
            print(_details(clause.probes[0], arguments(clause.probes[0])), end="")


def _names(node: object) -> Iterator[str]:
    """Yield the names of all variables in a syntax tree."""
    if isinstance(node, syntax.Name):
        yield node.name
    elif isinstance(node, list | tuple):
        for part in node:
            yield from _names(part)
    elif dataclasses.is_dataclass(node) and type(node).__module__ == syntax.__name__:
        for member in dataclasses.fields(node):
            yield from _names(getattr(node, member.name))


def _details(probe: ListedProbe, types: list[str]) -> str:
    """Return the details of a probe that ``dtrace -v`` prints."""
    text = ""
    promised = of_probe(probe.provider, probe.module, probe.function, probe.name, probe.promised)
    for title, value in zip(("Probe Description", "Argument"), promised, strict=True):
        text += _attributes(title, value)
    shown = [f"args[{n}]: {kind}" for n, kind in enumerate(types)] or ["None"]
    return f"{text}\n\tArgument Types\n" + "".join(f"\t\t{line}\n" for line in shown)


def show_left_out(probes: KernelProbes, lists: Sequence[Sequence[ListedProbe]], as_json: bool
                  ) -> None:
    """Print instructions and functions that cannot be probed, and jumps not counted as returns.

    Instructions are summarized by reason when a reason has very many, except in JSON.
    """
    lines, rows = JsonLines(), list(_left_out(probes, lists))
    many = {reason: count for reason, count in Counter(
        reason for _m, _f, offset, _i, reason in rows if offset is not None).items()
        if count > MOST_OF_A_REASON}
    for reason, count in (() if as_json else many.items()):
        print(f"not probed: {count} instructions: each {reason} (kinst disas FUNCTION shows them)")
    for module, function, offset, instruction, reason in rows:
        if not as_json and offset is not None and reason in many:
            continue
        if as_json:
            lines.row({"not_probed": function, "offset": offset, "instruction": instruction,
                       "reason": reason})
        elif offset is None:
            print(f"not probed: {module}:{function}: the function {reason}")
        else:
            print(f"not probed: kinst:{module}:{function}:{offset} ({instruction}): {reason}")


def _left_out(probes: KernelProbes, lists: Sequence[Sequence[ListedProbe]]
              ) -> Iterator[tuple[str, str, int | None, str | None, str]]:
    """Yield (module, function, offset, instruction, reason) for everything that is not probed.

    The offset and the instruction are None when the reason concerns a whole function.
    """
    table = probes.breakpoints
    by_instruction = set[tuple[str, str]]()
    for listed in lists:
        by_instruction |= (
            {(function.module_name, function.name) for function, _at, _offsets in listed.runs()}
            if isinstance(listed, InstructionProbes) else
            {(p.module, p.function) for p in listed if p.provider == "kinst"})
    for function in table.kernel_functions:
        if (function.module_name, function.name) not in by_instruction:
            # Only kinst probes instructions; functions without fbt probes are reported below.
            continue
        for i in table.instructions(function):
            if isinstance(i.verdict, Refuse):
                yield (function.module_name, function.name, i.offset,
                       table.arch.disassemble(i.code, i.address), i.verdict.reason)
    for name, reason in table.left_out.items():
        yield KERNEL, name, None, None, reason
    for name, jumps in table.not_followed.items():
        yield KERNEL, name, None, None, f"has jumps not counted as returns: {'; '.join(jumps)}"
