"""The pid provider: probes on instructions of a program, while one process runs it.

As in DTrace a process is named by its number, an instruction by its offset in hexadecimal, and a
program's own module is also ``a.out``.  A probe fires before its instruction, which is executed
where it is (``kinst/probes/_program.pxi``): any instruction can be probed, even one that no
breakpoint could stand on.
"""

import re
from collections.abc import Iterator

from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from emu.host.errors import ImageError
from kinst.code.listing import DATA, NO_INSTRUCTION, ProbedInstruction, instructions
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedProgram
from kinst.providers import fbt
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
    """``pid17:a.out:main:entry``, ``return``, ``4`` (an offset), ``*``."""

    name = "pid"

    def matches(self, pattern: str) -> bool:
        return pattern == self.name or _named(pattern) is not None

    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        found = _named(wanted.provider)
        if found is not None and wanted.program is None:
            raise ProbeError(f"{wanted.text}: pid is for D programs: kdtrace, or machine.trace()")
        if found is None or wanted.program is None:
            raise ProbeError(f"{wanted.text}: pid needs the number of a process, as in "
                             "pid$target:a.out:main:entry with -c '$ COMMAND', or pid1:::entry")
        if not int(found[1]):
            raise ProbeError(f"{wanted.text}: process 0 is the kernel's own; with -c '$ COMMAND' "
                             "or -p PID there is $target", "D_PROC_BADPID")
        program = wanted.program(int(found[1]))
        functions = list(_functions(program, wanted))
        number = probes.add_program(program, wanted.types)
        numbers: list[int] = []
        refusal: ProbeError | None = None
        for function in functions:
            try:
                numbers += _of_function(probes, number, program.file, function, wanted)
            except ProbeError as error:
                refusal = refusal or error
        if not numbers:
            raise refusal or ProbeError(f"{wanted.text}: there is no such place in it")
        return MadeProbes(numbers, [wanted.text], [])


def _named(provider: str) -> re.Match[str] | None:
    """The process of ``pid17``, or of a pattern for it that has the whole number, ``p*d17``."""
    number = NUMBER.search(provider) if is_glob(provider) else None
    name = f"pid{number[0]}" if number is not None and matches(
        provider, f"pid{number[0]}") else provider
    return PROCESS.fullmatch(name)


def _functions(program: TracedProgram, wanted: Wanted) -> Iterator[Symbol]:
    """:raises ProbeError: when there are none."""
    symbols, module = program.file.symbols, wanted.module
    if wanted.function == ABSOLUTE and not OFFSET.fullmatch(wanted.name):
        raise ProbeError(f"{wanted.text}: only addresses, in hexadecimal, go with the function '-'",
                         "D_PROC_NAME")
    if not (matches(module, AOUT) or matches(module, program.name)):
        raise ProbeError(f"{wanted.text}: process {program.process} has no module '{module}', only "
                         f"{program.name} (or {AOUT}): its program is linked statically",
                         "D_PROC_LIB" if wanted.function == ABSOLUTE else "")
    if wanted.function == ABSOLUTE:
        at = int(wanted.name, 16)
        inside = symbols.function_at(at)
        if inside is None:
            raise ProbeError(f"{wanted.text}: {at:#x} lies in no function of {program.name}",
                             "D_PROC_OFF")
        yield inside
        return
    known = set[int]()
    for function in symbols.functions():
        if matches(wanted.function, function.name) and function.address not in known:
            known.add(function.address)
            yield function
    if not known:
        near = [] if is_glob(wanted.function) else symbols.similar(wanted.function)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ProbeError(f"{wanted.text}: {program.name} has no function '{wanted.function}'{hint}",
                         "" if is_glob(wanted.function) else "D_PROC_FUNC")


def _of_function(probes: ProbeTable, program: int, file: ProgramFile, function: Symbol,
                 wanted: Wanted) -> list[int]:
    try:
        code = file.code(function)
    except ImageError as error:
        raise ProbeError(f"{wanted.text}: {error}") from None
    name = wanted.name
    if wanted.function == ABSOLUTE:
        name = f"{int(name, 16) - function.address:x}"
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
        raise ProbeError(f"{wanted.text}: '{name[:40]}' is an invalid probe name: give entry, "
                         "return or an offset in hexadecimal", "D_PROC_NAME")
    return [probes.add_in_program(program, function, ProbeKind.PROGRAM_OFFSET,
                                  _boundary(probes, function, code, int(name, 16), wanted), code)]


def _instructions(probes: ProbeTable, code: bytes, function: Symbol) -> Iterator[ProbedInstruction]:
    """Those of a function, without data between them; any can be probed."""
    for one in instructions(probes.trap, code, function):
        if not isinstance(one.verdict, Refuse) or one.verdict.reason not in (DATA, NO_INSTRUCTION):
            yield one


def _boundary(probes: ProbeTable, function: Symbol, code: bytes, offset: int, wanted: Wanted
              ) -> int:
    """:raises ProbeError: when no instruction begins at the offset."""
    if offset >= function.size:
        raise ProbeError(f"{wanted.text}: offset {offset:#x} outside of function "
                         f"'{function.name}', which has {function.size:#x} bytes", "D_PROC_OFF")
    known = [i.offset for i in _instructions(probes, code, function)]
    if offset not in known:
        near = [at for at in known if at < offset][-1:] + [at for at in known if at > offset][:1]
        raise ProbeError(f"{wanted.text}: no instruction of {function.name} begins at {offset:x}; "
                         f"the nearest: {' and '.join(f'{at:x}' for at in near)}")
    return offset
