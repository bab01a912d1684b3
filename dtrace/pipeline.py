"""Pipeline of D programs: parse, compile, link, enable and consume.

It is used by kdtrace, Python's ``Machine.trace``, the shell, explanations and the checks of
``explore``.  Between parsing a program and compiling its clauses, its probe descriptions are
matched, which creates the probes; running the session enables them.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dtrace.d.compile.libraries import needed, of_directories
from dtrace.d.compile.program import NO_PROBE, Compiled, Compiler, ListedProbe, Matched, Wanted
from dtrace.d.language.errors import DError
from dtrace.d.language.lexer import Macros
from dtrace.d.language.options import Options
from dtrace.d.language.surroundings import Nowhere
from dtrace.d.language.types import Universe
from dtrace.debug.program_types import program_types
from dtrace.run.kernel import KernelSurroundings
from dtrace.run.kernel_probes import KernelProbes
from dtrace.run.render import NoSymbols
from dtrace.run.session import Session
from dtrace.run.structured import Row
from dtrace.run.target import Target
from dtrace.run.timers import OwnProbes
from dwarf.types import Types
from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from kinst.probes.probed_code import ProbeError

SCOPE = re.compile(r"pid([0-9]{0,9})", re.ASCII)  # scope of the types of a process's program
Say = Callable[[str], None]
Choose = Callable[[Wanted, Sequence[ListedProbe]], Sequence[ListedProbe]]


@dataclass(frozen=True)
class ProgramText:
    """Text of a D program, and the values of its macro arguments and macro variables.

    :param source: text of the program.
    :param words: values of ``$0``, ``$1`` and so on.
    :param variables: values of ``$target``, ``$pid`` and other macro variables.
    :param string: whether the program is from a command line, not from a file.
    :param last: part of a probe description that its last word stands for.
    """

    source: str
    words: Sequence[str]
    variables: dict[str, int] = field(default_factory=dict)
    string: bool = False
    last: str = "name"


class Pipeline:
    """D programs that are compiled, linked and traced together.

    :param options: options of D.
    :param target: traced kernel; None when only DTrace's own probes are available.
    :param say: callback for the messages that dtrace(1) prints on standard error.
    :param frames: frames of a ``stack()`` appended to each clause; None appends nothing.
    :param choose: callback that selects among the probes of a description.
    """

    def __init__(self, options: Options, target: Target | None, say: Say,
                 frames: int | None = None, choose: Choose | None = None) -> None:
        self.options, self.target, self._say, self._choose = options, target, say, choose
        self.probes: OwnProbes | KernelProbes = OwnProbes() if target is None else target.probes
        self.surroundings = None if target is None else KernelSurroundings(
            target.image, target.types, target.probes,
            lambda content: self.compiler.place(content), say)
        self.compiler = Compiler(
            self.probes, options, Universe(None if target is None else target.types),
            self.surroundings or Nowhere(), frames)
        self.compiler.universe.string_size = lambda: options.number("strsize")
        self._process = 0  # the process of ``pid`TYPE``
        if self.surroundings is not None:
            self.surroundings.universe = self.compiler.universe
            self.compiler.universe.programs = self._program_types

    def take_libraries(self, texts: Iterable[str], directories: Sequence[Path] = ()) -> None:
        """Compile the libraries that programs use.

        :param texts: the programs, and their arguments.
        :param directories: directories with additional libraries.
        :raises KinstError: when a library cannot be read or compiled.
        """
        if self.options.given("nolibs"):
            return
        given = of_directories(directories)
        words = [*texts, *(text for _path, text in given)]
        types = None if self.target is None else self.target.types
        for library in needed(self.arch, types, words):
            try:
                self.compiler.library(library.text)
            except DError as error:
                if library.named:
                    raise KinstError(f"failed to compile library {library.name}.d for this kernel: "
                                     f"{error.said(False)}") from None
                self._say(f"left out library {library.name}.d, which does not fit this kernel: "
                          f"{error.said(False)}")
        for path, text in given:
            try:
                self.compiler.library(text)
            except DError as error:
                if error.tag == "D_PRAGMA_DEPEND":
                    continue  # skip a library for another system, as dtrace(1) does
                raise KinstError(f"failed to compile library {path}: {error.said(False)}"
                                 ) from None

    @property
    def arch(self) -> str:
        """Name of the kernel's architecture; without a kernel, the first supported architecture."""
        return next(iter(ARCHITECTURES)) if self.target is None else (
            self.target.probes.breakpoints.arch.name)

    def compile(self, program: ProgramText) -> list[Compiled]:
        """Compile a program and create the probes that match the program's descriptions.

        :raises DError: for the first error in the program.
        """
        macros = Macros(list(program.words), program.variables, self.options)
        self._process = program.variables.get("target", 0)
        wanted = self.compiler.read(
            program.source, macros, string=program.string, last=program.last,
            check_arguments=not self.options.given("argref"))
        return [self.compiler.clause(one, self._matched(one)) for one in wanted]

    def _program_types(self, scope: str) -> Sequence[Types]:
        """Return the types of a process's program and its objects, for ``pid17`TYPE``.

        :raises KinstError: if there is no such process.
        """
        named = SCOPE.fullmatch(scope)
        if named is None or self.target is None:
            return ()
        process = int(named[1] or self._process)
        if not process:
            return ()
        found = [program_types(one.file) for program in self.target.processes.programs(process)
                 for one in program.objects]
        return [types for types in found if types is not None]

    def _matched(self, wanted: Wanted) -> Matched:
        try:
            probes = self.probes.match(wanted.parts)
        except KinstError as error:
            tag = error.tag if isinstance(error, ProbeError) else ""
            return Matched([], str(error), tag or NO_PROBE)
        return Matched(probes if self._choose is None else self._choose(wanted, probes))

    def link(self, compiled: Sequence[Compiled], out: IO[str],
             sink: Callable[[Row], None] | None = None) -> Session:
        """Link programs and return the session that runs them.

        :param out: stream for the output of the programs.
        :param sink: callback that receives the output as objects in place of ``out``.
        :raises KinstError: when the programs are not permitted to run.
        """
        target = self.target
        session = Session(
            self.compiler, self.options, NoSymbols() if target is None else target.symbols, out,
            self._say, None if target is None else target.guest, sink)
        session.link(compiled)
        return session


def linked(pipeline: Pipeline, source: str, words: Sequence[str], sink: Callable[[Row], None],
           variables: dict[str, int] | None = None) -> Session:
    """Compile and link one program with its libraries, for callers without a command line.

    :param sink: callback that receives the program's output as objects.
    :param variables: values of ``$target``, ``$pid`` and other macro variables.
    :raises KinstError: when the program does not compile, or is not permitted to run.
    """
    pipeline.take_libraries([source, *words])
    try:
        compiled = pipeline.compile(ProgramText(source, words, variables or {}))
    except DError as error:
        raise KinstError(f"the program does not compile: {error.said(True)}") from None
    session = pipeline.link(compiled, io.StringIO(), sink)
    session.consumer.shell = _no_shell  # not the host's shell, as the text may come from the guest
    return session


def _no_shell(command: str) -> None:
    raise KinstError(f"system('{command[:60]}'): not available in machine.trace(); run commands "
                     "with machine.command()")
