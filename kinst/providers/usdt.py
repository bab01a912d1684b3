"""The providers that programs declare themselves (USDT), such as ``postgresql17``.

As in DTrace, the name of a provider ends with the number of its process, and a pattern may match
those of several processes.  The probes are in the file of a program or shared object
(``dwarf/dof.py``), at instructions that do nothing.  Where a program asks whether a probe is
enabled, it gets the answer 1, so it runs code that it would not run untraced.
"""

import functools
import re

from dwarf.dof import SECTION, DofProbe, DofProvider, read_providers
from emu.elf.program import END, ProgramFile
from emu.guest.static_probe import Argument, StaticProbe
from emu.host.errors import ImageError, KinstError
from kinst.code.usdt_code import USDT_CODES
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import LONGEST_CODE, ProbeError
from kinst.probes.traced_program import TracedObject, TracedProgram
from kinst.providers.patterns import is_glob, matches
from kinst.providers.pid import Pid, is_module
from kinst.providers.provider import MadeProbes, Provider, Wanted

NUMBERED = re.compile(r".*[^0-9]([0-9]{1,9})", re.ASCII)
# Types of arguments that calls do not pass in one general register or word
UNKNOWN = re.compile(r"(?:(?:const|volatile) )*(?:float|(?:long )?double|(?:struct|union) \w+)")
MOST_FILES = 64  # maximum number of files whose probes are remembered


class Usdt(Provider):
    """Provider of ``NAMEpid:MODULE:FUNCTION:PROBE``, declared by the program of a process."""

    name = "usdt"

    def matches(self, pattern: str) -> bool:
        return bool(pattern) and (is_glob(pattern) or (
            names_process(pattern) and not Pid().matches(pattern)))

    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        if wanted.programs is None:
            raise ProbeError(f"{wanted.text}: the probes of programs need a D program on "
                             "kinst-emu's machine: use kdtrace or machine.trace()")
        process = None if is_glob(wanted.provider) else NUMBERED.fullmatch(wanted.provider)
        if process is not None and not int(process[1]):
            raise ProbeError(f"{wanted.text}: process 0 is the kernel; to use $target, give "
                             "-c '$ COMMAND' or -p PID")
        try:
            programs = wanted.programs(None if process is None else int(process[1]))
        except ProbeError:
            raise
        except KinstError as error:
            raise ProbeError(f"{wanted.text}: {error}") from None
        numbers: list[int] = []
        reports: list[str] = []
        providers = set[str]()
        for program in programs:
            if program.several:
                reports.append(f"{wanted.text}: process {program.process} runs several programs "
                               f"named {program.name}; where their code differs, one of them has "
                               "no probes")
            for one in program.objects:
                try:
                    declared = declarations(one.file, probes.arch.name)
                except ImageError as error:
                    reports.append(f"{wanted.text}: {error}")
                    continue
                for provider in declared:
                    providers.add(f"{provider.name}{program.process}")
                    if matches(wanted.provider, f"{provider.name}{program.process}"):
                        numbers += _of_provider(probes, program, one, provider, wanted, reports)
        if not numbers:
            raise ProbeError(_nothing(wanted, process is not None, providers, reports))
        return MadeProbes(list(dict.fromkeys(numbers)), [wanted.text], list(dict.fromkeys(reports)))


def names_process(provider: str) -> bool:
    """Return whether the name of a provider, which is not a pattern, ends with a process ID."""
    return not is_glob(provider) and NUMBERED.fullmatch(provider) is not None


def _nothing(wanted: Wanted, named: bool, providers: set[str], reports: list[str]) -> str:
    """Return the error message for a description that matches no probe."""
    if reports:
        return reports[0]
    if any(matches(wanted.provider, one) for one in providers):
        return f"{wanted.text}: the program declares no such probe"
    if providers:
        return (f"{wanted.text}: no provider has this name, only "
                f"{', '.join(sorted(providers)[:20])}")
    return f"{wanted.text}: " + ("the program of this process declares no probes" if named
                                 else "neither the kernel nor a program has such a provider")


@functools.lru_cache(maxsize=MOST_FILES)
def declarations(file: ProgramFile, arch: str) -> list[DofProvider]:
    """Return the providers that a program or shared object declares.

    :raises ImageError: if its DOF is damaged.
    """
    try:
        return read_providers(*file.section_content(SECTION), USDT_CODES[arch].narrow)
    except KinstError as error:
        raise ImageError(f"{file.path}: damaged {SECTION}: {error}") from None


def _of_provider(probes: ProbeTable, program: TracedProgram, one: TracedObject,
                 provider: DofProvider, wanted: Wanted, reports: list[str]) -> list[int]:
    """Add the wanted probes of a provider, and report those that cannot be added."""
    made: list[int] = []
    reports += [f"{wanted.text}: {one.file.path}: {reason}" for reason in provider.left_out]
    for probe in provider.probes:
        if not (matches(wanted.name, probe.name) and matches(wanted.function, probe.function)
                and is_module(wanted.module, program, one)):
            continue
        try:
            unread = next(filter(UNKNOWN.fullmatch, probe.native), "")
            if unread:
                raise ImageError(f"passes an argument of type {unread}, which cannot be read")
            fires, asks = (_sites(probes.arch.name, one, probe, offsets) for offsets in (
                probe.offsets, probe.enabled))
            number = probes.add_program(program, wanted.types)
            made.append(probes.add_declared(number, StaticProbe(
                f"{provider.name}{program.process}", one.name, probe.function, probe.name,
                tuple(Argument(probe.native[source], seen) for source, seen in zip(
                    probe.mapping, probe.translated, strict=True)), (),
                attributes=provider.attributes), probe.mapping, fires, asks))
        except KinstError as error:
            reports.append(f"{wanted.text}: {provider.name}{program.process}:{one.name}:"
                           f"{probe.function}:{probe.name}: {error}")
    return made


def _sites(arch: str, one: TracedObject, probe: DofProbe, offsets: tuple[int, ...]
           ) -> list[tuple[int, bytes]]:
    """Return the address and the code of the instructions at offsets of a probe's function.

    :raises ImageError: if an address is not in the code of the file, or the instruction there does
        not stand for a probe.
    """
    found = []
    for offset in offsets:
        address = probe.address + offset
        if not 0 <= address + one.moved < END:
            raise ImageError(f"{one.file.path}: {address:#x} is outside the address space of "
                             "programs")
        code = one.file.code_at(address, LONGEST_CODE)
        if not code.startswith(USDT_CODES[arch].nothing):
            raise ImageError(f"{one.file.path}: the instruction at {address:#x} stands for no probe"
                             + (": the linker has moved it; link with --no-relax, or use kdtrace -G"
                                if USDT_CODES[arch].moves else ""))
        found.append((address + one.moved, code))
    return found
