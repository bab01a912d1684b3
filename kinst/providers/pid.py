"""The pid provider: probes on the instructions of a program, in one process that runs it.

As in DTrace, a process is named by its number, an instruction by its offset in hexadecimal, and a
program's own module is also called ``a.out``.  A probe fires before its instruction, which is
executed in place (``kinst/probes/_program.pxi``), so any instruction can be probed, even one that a
breakpoint could not replace.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dwarf.index import Function
from emu.elf.program import END
from emu.elf.symbols import Symbol
from emu.host.errors import ImageError
from emu.host.printable import counted
from kinst.code.listing import DATA, NO_INSTRUCTION, ProbedInstruction, instructions
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedObject, TracedProgram
from kinst.providers import fbt, program_inline
from kinst.providers.patterns import is_glob, matches
from kinst.providers.provider import MadeProbes, Provider, Wanted
from kinst.relocation.verdict import Refuse

ENTRY, RETURN = fbt.ENTRY, fbt.RETURN
AOUT, ABSOLUTE = "a.out", "-"
NUMBER = re.compile(r"[0-9]{1,9}$", re.ASCII)
PROCESS = re.compile(r"pid([0-9]{1,9})", re.ASCII)
OFFSET = re.compile(r"(?:0x)?[0-9a-f]{1,8}", re.ASCII | re.IGNORECASE)
KINDS = {ENTRY: ProbeKind.PROGRAM_ENTRY, RETURN: ProbeKind.PROGRAM_RETURN}


class Pid(Provider):
    """Provider of ``pid17:a.out:main:NAME``; NAME is ``entry``, ``return``, an offset or ``*``."""

    name = "pid"

    def matches(self, pattern: str) -> bool:
        return pattern == self.name or _named(pattern) is not None

    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        process = _named(wanted.provider)
        if process is not None and wanted.program is None:
            raise ProbeError(f"{wanted.text}: pid probes need a D program: use kdtrace or "
                             "machine.trace()")
        if process is None or wanted.program is None:
            raise ProbeError(f"{wanted.text}: the provider name must include a process ID, as in "
                             "pid1:::entry, or $target, as in pid$target:a.out:main:entry with "
                             "-c '$ COMMAND'")
        if not int(process[1]):
            raise ProbeError(f"{wanted.text}: process 0 is the kernel; to use $target, give "
                             "-c '$ COMMAND' or -p PID", "D_PROC_BADPID")
        program = wanted.program(int(process[1]))
        if wanted.function != ABSOLUTE and wanted.name not in KINDS and not is_glob(
                wanted.name) and not OFFSET.fullmatch(wanted.name):
            raise _bad_name(wanted, wanted.name)
        objects = _objects(program, wanted)
        found = MadeProbes([], [], [])
        inline = _may_be_inline(wanted) and (wanted.name in KINDS or not any(
            one.file.symbols.named(wanted.function) for one in objects))
        copies = [(one, inside) for one in objects if inline
                  and (inside := program_inline.copies_in(one, wanted, found.reports))]
        functions = list(_functions(objects, wanted, copies, found.reports))
        number = probes.add_program(program, wanted.types)
        refusal: ProbeError | None = None
        for one, function in functions:
            try:
                found.numbers.extend(_of_function(probes, number, one, function, wanted))
            except ProbeError as error:
                refusal = refusal or error
        if found.numbers:
            found.text.append(wanted.text)
        for one, inside in copies if wanted.name in KINDS else ():
            made = program_inline.create(probes, program.process, number, one, inside, wanted)
            found.add(made)
        if not found.numbers:
            raise refusal or ProbeError(found.reports[0] if found.reports else (
                f"{wanted.text}: no instruction matches this probe name"))
        return found


def process_of(provider: str) -> int | None:
    """Return the process of a provider's name, or None if it is not a name of this provider."""
    named = _named(provider)
    return None if named is None else int(named[1])


def _named(provider: str) -> re.Match[str] | None:
    """Match a provider name: ``pid17``, or a pattern such as ``p*d17`` that contains the number."""
    number = NUMBER.search(provider) if is_glob(provider) else None
    name = f"pid{number[0]}" if number is not None and matches(
        provider, f"pid{number[0]}") else provider
    return PROCESS.fullmatch(name)


def is_module(module: str, program: TracedProgram, one: TracedObject) -> bool:
    """Return whether a module in a description is an object; the program is also ``a.out``."""
    return matches(module, one.name) or (one is program.objects[0] and matches(module, AOUT))


def _objects(program: TracedProgram, wanted: Wanted) -> list[TracedObject]:
    """Return the objects that a description selects.

    :raises ProbeError: when it selects none.
    """
    module = wanted.module
    if wanted.function == ABSOLUTE and not OFFSET.fullmatch(wanted.name):
        raise ProbeError(f"{wanted.text}: with the function '-', the name must be a hexadecimal "
                         "address",
                         "D_PROC_NAME")
    objects = [one for one in program.objects if is_module(module, program, one)]
    if not objects and module and not is_glob(module) and wanted.function != ABSOLUTE:
        # As in FreeBSD, a module may be named without the suffix of a shared object.
        objects = [one for one in program.objects if one.name.startswith(f"{module}.")]
    if not objects:
        names = list(dict.fromkeys([f"{program.objects[0].name} (or {AOUT})",
                                    *(one.name for one in program.objects[1:])]))
        last = names.pop()
        modules = f"{', '.join(names)} and {last}" if names else (
            f"{last}: its program is statically linked")
        raise ProbeError(f"{wanted.text}: process {program.process} has no module '{module}', only "
                         f"{modules}",
                         "D_PROC_LIB" if wanted.function == ABSOLUTE else "")
    return objects


def _functions(objects: Sequence[TracedObject], wanted: Wanted,
               copies: Sequence[tuple[TracedObject, Sequence[Function]]], reports: Sequence[str]
               ) -> Iterator[tuple[TracedObject, Symbol]]:
    """Yield the functions that a description selects, and their objects.

    :param copies: the inline copies of the function that it names.
    :param reports: why others are unknown.
    :raises ProbeError: when it selects neither functions nor inline copies.
    """
    if wanted.function == ABSOLUTE:
        at = int(wanted.name, 16)
        for one in objects:
            inside = one.file.symbols.function_at(at)
            if inside is not None:
                yield one, inside
                return
        raise ProbeError(f"{wanted.text}: {at:#x} is not in a function of {objects[0].name}",
                         "D_PROC_OFF")
    found = False
    for one in objects:
        known = set[int]()
        for function in one.file.symbols.functions():
            if matches(wanted.function, function.name) and function.address not in known:
                known.add(function.address)
                found = True
                yield one, function
    count = sum(len(inside) for _one, inside in copies)
    if not found and count and wanted.name not in KINDS:
        raise ProbeError(f"{wanted.text}: '{wanted.function}' exists only as "
                         f"{counted(count, 'inline copy')}; use entry or return", "D_PROC_FUNC")
    if not found and not count:
        near = [] if is_glob(wanted.function) else objects[0].file.symbols.similar(wanted.function)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        if reports:
            raise ProbeError(reports[0], "D_PROC_FUNC")
        if _may_be_inline(wanted):
            hint = hint or program_inline.why_none(objects, wanted)
        raise ProbeError(f"{wanted.text}: {objects[0].name} has no function '{wanted.function}'"
                         f"{hint}", "" if is_glob(wanted.function) else "D_PROC_FUNC")


def _may_be_inline(wanted: Wanted) -> bool:
    """Return whether a description names one function, which may have inline copies."""
    return bool(wanted.function) and not is_glob(wanted.function) and wanted.function != ABSOLUTE


def _of_function(probes: ProbeTable, program: int, one: TracedObject, function: Symbol,
                 wanted: Wanted) -> list[int]:
    try:
        code = one.file.code(function)
    except ImageError as error:
        raise ProbeError(f"{wanted.text}: {error}") from None
    start = function.address
    if not 0 <= start + one.moved < END:
        raise ProbeError(f"{wanted.text}: {function.name} is outside the address space of programs")
    function = replace(function, address=start + one.moved)
    name = wanted.name
    if wanted.function == ABSOLUTE:
        name = f"{int(name, 16) - start:x}"
    made: list[int] = []
    if matches(name, ENTRY):
        made.append(probes.add_in_program(program, function, KINDS[ENTRY], 0, code))
    if matches(name, RETURN):
        _first, left, _framed, leaving = probes.dispatcher.boundaries(
            function.address, code, 0, len(code))
        away = set(leaving)
        for at in sorted([*left, *away]):
            made.append(probes.add_in_program(program, function, KINDS[RETURN], at, code))
            if at in away:
                probes.dispatcher.fire_leaving(made[-1], function.address, len(code))
            else:
                probes.dispatcher.fire_behind(made[-1])
    if not name.strip("*"):
        return made + probes.add_all_in_program(program, function, code)
    if is_glob(name):
        return made + [probes.add_in_program(program, function, ProbeKind.PROGRAM_OFFSET, i.offset,
                                             code)
                       for i in _instructions(probes, code, function)
                       if matches(name, f"{i.offset:x}")]
    if made or name in KINDS:
        return made
    if not OFFSET.fullmatch(name):
        raise _bad_name(wanted, name)
    return [probes.add_in_program(program, function, ProbeKind.PROGRAM_OFFSET,
                                  _boundary(probes, function, code, int(name, 16), wanted), code)]


def _bad_name(wanted: Wanted, name: str) -> ProbeError:
    return ProbeError(f"{wanted.text}: '{name[:40]}' is an invalid probe name: use entry, return "
                      "or an offset in hexadecimal", "D_PROC_NAME")


def _instructions(probes: ProbeTable, code: bytes, function: Symbol) -> Iterator[ProbedInstruction]:
    """Yield a function's instructions, all of which can be probed; skip data between them."""
    for i in instructions(probes.trap, code, function):
        if not isinstance(i.verdict, Refuse) or i.verdict.reason not in (DATA, NO_INSTRUCTION):
            yield i


def _boundary(probes: ProbeTable, function: Symbol, code: bytes, offset: int, wanted: Wanted
              ) -> int:
    """Return an offset after checking that an instruction begins there.

    :raises ProbeError: when no instruction begins at the offset.
    """
    if offset >= function.size:
        raise ProbeError(f"{wanted.text}: offset {offset:#x} outside of function "
                         f"'{function.name}', which has {function.size:#x} bytes", "D_PROC_OFF")
    known = [i.offset for i in _instructions(probes, code, function)]
    if offset not in known:
        near = [at for at in known if at < offset][-1:] + [at for at in known if at > offset][:1]
        raise ProbeError(f"{wanted.text}: no instruction of {function.name} begins at {offset:x}; "
                         f"nearest: {' and '.join(f'{at:x}' for at in near)}")
    return offset
