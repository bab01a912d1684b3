"""Probe descriptions as in dtrace(1): ``provider:module:function:name``.

Leading parts may be omitted; an empty part matches everything, and parts may be shell patterns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtrace.debug.debug_data import FileSources, NoSuchFile
from dtrace.debug.program_functions import program_functions
from dtrace.debug.program_types import dwarf_of
from dtrace.descriptions.code_places import ADDRESS, LINE, OFFSET, code_places, number_of
from dtrace.descriptions.providers import PROVIDERS
from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from dwarf.types import Types
from emu.elf.image import Image
from emu.elf.symbols import KERNEL
from emu.host.errors import KinstError
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedProgram
from kinst.providers.kinst_provider import PROVIDER as KINST
from kinst.providers.patterns import matches
from kinst.providers.pid import ABSOLUTE, Pid, is_module, process_of
from kinst.providers.provider import MadeProbes, Provider, Wanted
from kinst.providers.usdt import Usdt, names_process

FIELDS = ("provider", "module", "function", "name")


@dataclass(frozen=True)
class Description:
    """A parsed probe description.

    :param text: description as written, for messages.
    """

    text: str
    provider: str = ""
    module: str = ""
    function: str = ""
    name: str = ""


def parse(text: str) -> Description:
    """Parse a probe description as ``dtrace -n`` does: the last part is the name.

    :raises KinstError: when the text is not a probe description.
    """
    if "{" in text or "/" in text:
        raise KinstError(
            f"invalid probe specifier {text}: give the probe alone, without predicate and actions"
        )
    parts = text.strip().split(":")
    if not text.strip() or len(parts) > len(FIELDS):
        raise KinstError(
            f"invalid probe specifier {text}: give {':'.join(FIELDS)}, like kinst::strlen:4 or "
            "fbt::malloc:entry"
        )
    fields = dict(zip(FIELDS[-len(parts) :], parts, strict=True))
    return Description(text, **fields)


def modules_of(image: Image) -> list[str]:
    """Return the names of the kernel and its modules, as used in probe descriptions."""
    return [KERNEL, *(module.name.removesuffix(".ko") for module in image.modules)]


def create(
    breakpoints: ProbeTable, wanted: Description, unsafe: bool,
    index: Callable[[], DebugIndex] | None = None,
    types: Callable[[], Types] | None = None,
    program: Callable[[int], TracedProgram] | None = None,
    programs: Callable[[int | None], Sequence[TracedProgram]] | None = None,
) -> MadeProbes:
    """Create a description's probes with every provider that the description matches.

    :param unsafe: whether to probe excluded functions, too.
    :param index: returns the debug data, for inline copies.
    :param types: returns the kernel's types, for system calls.
    :param program: returns the program that a process runs, by process ID; ``programs``: see
        ``Wanted``.
    :raises KinstError: with the error message of dtrace(1), naming the part that does not match.
    """
    try:
        known = modules_of(breakpoints.image)
        if not Pid().matches(wanted.provider) and not Usdt().matches(wanted.provider) and not any(
                matches(wanted.module, module) for module in known) and not any(
                matches(wanted.module, probe.module) for probe in breakpoints.declared):
            function = wanted.function or wanted.module
            hint = ("" if wanted.function else "; a function is the third part: "
                    f"{wanted.provider}::{function}:{wanted.name}")
            raise ProbeError(f"{wanted.text}: unknown module '{wanted.module}'; known modules: "
                             f"{' and '.join(known)}{hint}")
        meant = [provider for provider in PROVIDERS if provider.matches(wanted.provider)]
        created = MadeProbes([], [], [])
        for module, function, name in _spelled(breakpoints.image, wanted, program):
            text = wanted.text
            if (function, name) != (wanted.function, wanted.name):
                text = f"{wanted.provider}:{module}:{function}:{name}"
            made = _made(breakpoints, meant, Wanted(
                text, function, name, unsafe, index, module, wanted.provider, types,
                program, programs, program_functions))
            created.add(made)
        return created
    except ProbeError as error:
        raise ProbeError(f"invalid probe specifier {error}", error.tag) from None


def _spelled(image: Image, wanted: Description, program: Callable[[int], TracedProgram] | None
             ) -> list[tuple[str, str, str]]:
    """Return (module, function, name) for a description, with code places converted to offsets.

    ``kinst::FILE@LINE:``, ``kinst::FUNCTION+0xHEX:`` and ``kinst::FUNCTION:0xHEX:`` are converted
    to functions with decimal offsets; ``pid17::FILE@LINE:`` to an object and addresses
    in it.
    """
    module, function, name = wanted.module, wanted.function, wanted.name
    process, line = process_of(wanted.provider), LINE.fullmatch(function)
    if process and line is not None and not name and program is not None:
        return _of_line(program(process), wanted, line["file"], int(line["line"]))
    if wanted.provider != KINST:
        return [(module, function, name)]
    if not name and "@" in function:
        return list(dict.fromkeys((module, place.function.name, str(place.offset))
                                  for place in code_places(image, function)))
    if ADDRESS.fullmatch(name):
        return [(module, function, str(number_of(name)))]
    base, plus, offset = function.partition("+")
    if plus and not name and OFFSET.fullmatch(function):
        return [(module, base, str(number_of(offset)))]
    return [(module, function, name)]


def _of_line(program: TracedProgram, wanted: Description, file: str, line: int
             ) -> list[tuple[str, str, str]]:
    """Return the object and address of the first instruction of a line in each function.

    :raises ProbeError: if the program's files have no code for the line.
    """
    found: dict[tuple[str, int], tuple[str, str, str]] = {}
    why = ""
    for one in program.objects:
        if not is_module(wanted.module, program, one):
            continue
        try:
            elf = dwarf_of(one.file)
            if elf is None:
                continue
            pieces = FileSources(elf).code(file, line)
        except NoSuchFile:
            continue
        except DebugDataError as error:
            raise ProbeError(f"{wanted.text}: {error}") from None
        why = why or f"{file}:{line} has no code in {one.name}"
        for low, _high in pieces:
            function = one.file.symbols.function_at(low)
            if function is not None:
                found.setdefault((one.name, function.address), (one.name, ABSOLUTE, f"{low:x}"))
    if not found:
        raise ProbeError(f"{wanted.text}: " + (why or (
            f"no mapped file has DWARF about a source file {file}")))
    return list(found.values())


def _made(breakpoints: ProbeTable, providers: Sequence[Provider], asked: Wanted) -> MadeProbes:
    """Create probes with several providers; raise the first error if all providers fail."""
    created, refusals = MadeProbes([], [], []), list[ProbeError]()
    for provider in providers:
        try:
            made = provider.create(breakpoints, asked)
        except ProbeError as error:
            refusals.append(error)
            continue
        created.add(made)
    if len(refusals) == len(providers):
        raise refusals[-1 if names_process(asked.provider) else 0]
    return created
