"""A D program compiled and linked for the probes of an emulated kernel."""

import io
from collections.abc import Callable, Sequence

from dtrace.d.compile.program import Compiler, ListedProbe
from dtrace.d.language.errors import DError
from dtrace.d.language.lexer import Macros
from dtrace.d.language.types import Universe
from dtrace.debug.debug_index import debug_index
from dtrace.run.kernel import KernelProbes, KernelSurroundings, KernelSymbols
from dtrace.run.libraries import needed
from dtrace.run.options import Options
from dtrace.run.processes import GuestProcesses
from dtrace.run.session import Session, defaults
from dtrace.run.structured import Row
from dtrace.run.unicorn_guest import UnicornGuest
from dtrace.stacks.user_programs import UserPrograms
from dwarf.types import Types
from emu.host.errors import KinstError
from kinst.probes.breakpoints import Breakpoints

Choose = Callable[[tuple[str, str, str, str], Sequence[ListedProbe]], Sequence[ListedProbe]]


class _Chosen(KernelProbes):
    """Some of the probes of a description."""

    choose: Choose | None = None

    def match(self, parts: tuple[str, str, str, str]) -> Sequence[ListedProbe]:
        found = super().match(parts)
        return found if self.choose is None else self.choose(parts, found)


def kernel_session(
    breakpoints: Breakpoints, types: Types | None, source: str, words: Sequence[str],
    options: Options, unsafe: bool, say: Callable[[str], None], sink: Callable[[Row], None],
    choose: Choose | None = None, programs: UserPrograms | None = None, target: str = "",
) -> Session:
    """The program's probes are made among ``breakpoints``; nothing is enabled yet.

    :param types: of the kernel; None where it has none.
    :param words: ``$0`` and the arguments behind it.
    :param say: is given what dtrace(1) says on standard error.
    :param sink: is given what firings leave, as objects.
    :param choose: which of the probes of a description are meant.
    :param programs: whose names stacks of users have.
    :param target: the name of the program that the next process is made for, ``$target``.
    :raises KinstError: when the program does not compile, or may not run.
    """
    image = breakpoints.image
    probes = _Chosen(breakpoints, unsafe, None if types is None else lambda: debug_index(image),
                     None if types is None else lambda: types)
    probes.choose = choose
    programs = programs if programs is not None else UserPrograms()
    processes = GuestProcesses(breakpoints.machine, lambda: programs, lambda: target)
    probes.program = processes.program
    compiler = Compiler(
        probes, lambda name, value: options.set(name, value, inside=True),
        lambda: defaults(options), lambda: options.number("strsize"),
        lambda: options.given("zdefs"), Universe(types),
        KernelSurroundings(image, types, probes, lambda content: compiler.place(content), say))
    try:
        if not options.given("nolibs"):
            for text in needed(breakpoints.arch.name, types,
                               [source, *words]).values():
                compiler.library(text)
        variables = {"target": processes.made_next} if target else {}
        compiled = compiler.compile(source, Macros(
            list(words), variables, lambda: options.given("defaultargs")))
    except DError as error:
        raise KinstError(f"the program does not compile: {error.said(True)}") from None
    guest = UnicornGuest(breakpoints, probes, types, stops=False)
    guest.programs = programs
    symbols = KernelSymbols(image, guest.lines, guest.programs)
    session = Session(compiler, options, symbols, io.StringIO(), say, guest, sink)
    session.consumer.shell = _no_shell  # not the host's: the text may be the guest's
    session.link(compiled)
    return session


def _no_shell(command: str) -> None:
    raise KinstError(f"system('{command[:60]}'): a program of machine.trace() gives no commands: "
                     "machine.command() does")
