"""Files for programs that declare probes (USDT): ``kdtrace -h`` and ``kdtrace -G``."""

import sys
from pathlib import Path

from dtrace.calls.prototypes import Prototypes
from dtrace.d.compile.program import Compiler
from dtrace.d.language.errors import DError
from dtrace.d.language.lexer import Macros
from dtrace.d.language.surroundings import Nowhere
from dtrace.d.language.syntax import ProviderDeclaration
from dtrace.d.language.types import Universe
from dtrace.run.timers import OwnProbes
from dtrace.usdt.header import header
from dtrace.usdt.linked_probes import link_probes
from dwarf.types import Array, Float, Incomplete, Structure, Types, declare, strip
from emu.arch.arch import Arch
from emu.arch.architectures import ARCHITECTURES
from emu.elf.reader import ElfFile, read_file
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.printable import counted
from images import catalog
from kinst_emu.cli.command_line import CommandLine
from kinst_emu.cli.d_sources import RELEASE, source_of

STDOUT = "-"


def usdt_file(line: CommandLine) -> int:
    """Write the file that -h or -G asks for, and return the exit status.

    :raises KinstError: if the program declares no providers, or an object file is unsuitable.
    """
    option = "-h" if line.shown.header else "-G"
    if len(line.texts.programs) != 1:
        raise KinstError(f"{option}: needs one program with the providers' declarations, as in "
                         f"{option} -s probes.d")
    arch = _arch(line)
    compiler, clauses = _declared(line, arch)
    if not compiler.providers:
        raise KinstError(f"{option}: the program declares no provider, as in "
                         "'provider NAME { probe PROBE(int); };'")
    for provider in compiler.providers.values():
        _check(provider)
    out = _output(line, option)
    inputs = [Path(word) for word in line.texts.words] + [
        Path(text) for letter, text in line.texts.programs if letter == "s" and text != STDOUT]
    if any(out.exists() and one.exists() and out.samefile(one) for one in inputs):
        raise KinstError(f"{option}: {out} is an input, too; give another name with -o")
    if line.shown.header:
        text = header(compiler.providers.values(), "" if out == Path(STDOUT) else out.name)
        if out == Path(STDOUT):
            sys.stdout.write(text)
            return 0
        with replacing(out) as file:
            file.write(text.encode())
        return 0
    if clauses:
        raise KinstError("-G: the program may only declare providers; leave out its clauses")
    if not line.texts.words:
        raise KinstError("-G: needs the program's object files, as in -G -s probes.d main.o")
    count = link_probes(compiler.providers, [Path(word) for word in line.texts.words], arch.name,
                        arch.elf_machine, out)
    if not line.texts.options.given("quiet"):
        print(f"{out}: declares {counted(count, 'call')} for probes")
    return 0


def _check(provider: ProviderDeclaration) -> None:
    """Check that the arguments of a provider's probes are passed in one word each.

    :raises KinstError: if one is not.
    """
    for probe in provider.probes:
        for number, kind in enumerate(probe.native, 1):
            if isinstance(strip(kind), Float | Structure | Array | Incomplete):
                raise KinstError(f"{provider.name}:{probe.name}: argument {number} "
                                 f"({declare(kind)}) cannot be passed to a probe; pass its address")


def _arch(line: CommandLine) -> Arch:
    """Return the architecture of the first object file; of a header, any.

    :raises KinstError: if the file is for an architecture that is not supported.
    """
    if line.shown.link and line.texts.words:
        file = ElfFile(read_file(Path(line.texts.words[0])))
        for arch in ARCHITECTURES.values():
            if arch.elf_machine == file.machine:
                return arch
        raise KinstError(f"{file.path}: programs for {file.machine} are not supported")
    return next(iter(ARCHITECTURES.values()))


def _declared(line: CommandLine, arch: Arch) -> tuple[Compiler, int]:
    """Read the program; return its compiler and the number of its clauses."""
    types: Types | None = None
    if line.system.kernel is not None:
        types = Prototypes(catalog.find(line.system.kernel, line.system.module)).types()
    options = line.texts.options
    ((letter, text),) = line.texts.programs
    source = source_of(letter, text, options, line.texts.preprocess, arch, RELEASE)
    compiler = Compiler(OwnProbes(), options, Universe(types), Nowhere())
    macros = Macros([text], {}, options)
    try:
        clauses = sum(1 for _wanted in compiler.read(source, macros, string=letter != "s"))
    except DError as error:
        raise KinstError(f"failed to compile script {text}: "
                         f"{error.said(options.given('errtags'))}") from None
    return compiler, clauses


def _output(line: CommandLine, option: str) -> Path:
    if line.shown.file is not None:
        return Path(line.shown.file)
    ((letter, text),) = line.texts.programs
    if letter != "s" or text == STDOUT:
        raise KinstError(f"{option}: needs -o FILE, because the program is not in a file")
    return Path(Path(text).stem + (".h" if option == "-h" else ".o"))
