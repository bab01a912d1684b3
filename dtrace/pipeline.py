"""D programs from their text to what they print: compiled, linked, enabled, consumed.

kdtrace, Python's ``Machine.trace``, the shell, explanations and the checks of ``explore`` all go
this way.  A program's descriptions are matched between reading it and compiling its clauses, which
makes the probes; running the session enables them.
"""

import io
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
from dtrace.run.kernel import KernelProbes, KernelSurroundings
from dtrace.run.render import NoSymbols
from dtrace.run.session import Session
from dtrace.run.structured import Row
from dtrace.run.target import Target
from dtrace.run.timers import OwnProbes
from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from kinst.probes.probed_code import ProbeError

Say = Callable[[str], None]
Choose = Callable[[Wanted, Sequence[ListedProbe]], Sequence[ListedProbe]]


@dataclass(frozen=True)
class ProgramText:
    """A program, and what it is given.

    :param words: ``$0`` and the arguments after it.
    :param variables: the numbers of ``$target``, ``$pid`` and the like.
    :param string: it is from a command line, not from a file.
    :param last: the part that a description's last word is.
    """

    source: str
    words: Sequence[str]
    variables: dict[str, int] = field(default_factory=dict)
    string: bool = False
    last: str = "name"


class Pipeline:
    """Programs that are traced together.

    :param target: the kernel; None: there are only DTrace's own probes.
    :param say: is given what dtrace(1) says on standard error.
    :param frames: clauses end with ``stack()`` of so many; None: they do not.
    :param choose: which of the probes of a description are meant.
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

    def take_libraries(self, texts: Iterable[str], directories: Sequence[Path] = ()) -> None:
        """Take in the libraries that programs use.

        :param texts: the programs, and their arguments.
        :param directories: more libraries.
        :raises KinstError: when one cannot be read or compiled.
        """
        if self.options.given("nolibs"):
            return
        given = of_directories(directories)
        words = [*texts, *(text for _path, text in given)]
        types = None if self.target is None else self.target.types
        for name, text in needed(self.arch, types, words).items():
            try:
                self.compiler.library(text)
            except DError as error:
                raise KinstError(f"failed to compile library {name}.d for this kernel: "
                                 f"{error.said(False)}") from None
        for path, text in given:
            try:
                self.compiler.library(text)
            except DError as error:
                if error.tag == "D_PRAGMA_DEPEND":
                    continue  # as dtrace(1) does: a library for another system
                raise KinstError(f"failed to compile library {path}: {error.said(False)}"
                                 ) from None

    @property
    def arch(self) -> str:
        """The architecture's name; without a kernel, the first that there is."""
        return next(iter(ARCHITECTURES)) if self.target is None else (
            self.target.probes.breakpoints.arch.name)

    def compile(self, program: ProgramText) -> list[Compiled]:
        """Compile a program; the probes that its descriptions match are made.

        :raises DError: for its first mistake.
        """
        macros = Macros(list(program.words), program.variables, self.options)
        wanted = self.compiler.read(
            program.source, macros, string=program.string, last=program.last,
            check_arguments=not self.options.given("argref"))
        return [self.compiler.clause(one, self._matched(one)) for one in wanted]

    def _matched(self, wanted: Wanted) -> Matched:
        try:
            found = self.probes.match(wanted.parts)
        except KinstError as error:
            tag = error.tag if isinstance(error, ProbeError) else ""
            return Matched([], str(error), tag or NO_PROBE)
        return Matched(found if self._choose is None else self._choose(wanted, found))

    def link(self, compiled: Sequence[Compiled], out: IO[str],
             sink: Callable[[Row], None] | None = None) -> Session:
        """Link programs; the session that runs them.

        :param out: what they print goes there; ``sink``: is given objects instead.
        :raises KinstError: when they may not run.
        """
        target = self.target
        session = Session(
            self.compiler, self.options, NoSymbols() if target is None else target.symbols, out,
            self._say, None if target is None else target.guest, sink)
        session.link(compiled)
        return session


def linked(pipeline: Pipeline, source: str, words: Sequence[str], sink: Callable[[Row], None],
           variables: dict[str, int] | None = None) -> Session:
    """One program of whoever has no command line: compiled with its libraries, and linked.

    :raises KinstError: when it does not compile, or may not run.
    """
    pipeline.take_libraries([source, *words])
    try:
        compiled = pipeline.compile(ProgramText(source, words, variables or {}))
    except DError as error:
        raise KinstError(f"the program does not compile: {error.said(True)}") from None
    session = pipeline.link(compiled, io.StringIO(), sink)
    session.consumer.shell = _no_shell  # not the host's: the text may be the guest's
    return session


def _no_shell(command: str) -> None:
    raise KinstError(f"system('{command[:60]}'): a program of machine.trace() gives no commands: "
                     "machine.command() does")
