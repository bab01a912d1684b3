"""IPython magics of a session: D programs, explanations, and queries about the kernel."""

import argparse
import shlex
from typing import NoReturn

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
)

from emu.host.errors import KinstError
from kinst_emu.api.program import Program
from kinst_emu.api.recording import Written
from kinst_emu.shell.opening import open_with, opening
from kinst_emu.shell.session import COMMAND, Session
from kinst_emu.shell.shown import Disassembly, Explanation, Lines
from kinst_emu.terminal.terminal import parse_count


class MagicWords(argparse.ArgumentParser):
    """Argument parser of a magic, which reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise a KinstError with the parser's message."""
        raise KinstError(f"%{self.prog}: {message}")


@magics_class
class KernelMagics(Magics):
    """IPython magics that work on a session.

    :param session: the session.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        super().__init__(shell)
        self._session, self._names = session, shell.user_ns

    @line_magic
    def kinst(self, line: str) -> None:
        """Open a kernel or a recording: %kinst -k teaching/amd64, %kinst boot.rec."""
        parser = MagicWords("kinst", add_help=False)
        opening(parser)
        open_with(self._session, parser.parse_args(_words(line)))

    # Without this, IPython would evaluate the braces of a clause as Python.
    @no_var_expand
    @line_cell_magic
    def dtrace(self, line: str, cell: str | None = None) -> Program:
        """Run a D program.

        %%dtrace [-c WORKLOAD] [-x OPTION[=VALUE]] [ARGUMENT ...], with the program in the lines
        below.  %dtrace takes the program from the line itself, with -n.

        With -c, the program traces a call ('strlen("hello")') or a command ('$ ls /') and ends.
        Without -c, it stays enabled and traces everything that is called and run until
        traced.close().  -c {NAME} is the text of a variable.  The program is assigned to
        ``traced``: traced.records and traced.aggregations are Python values.
        """
        parser = MagicWords("dtrace", add_help=False)
        parser.add_argument("-n", dest="program")
        parser.add_argument("-c", dest="workload")
        parser.add_argument("-x", dest="options", action="append", default=[])
        parser.add_argument("arguments", nargs="*")
        given = parser.parse_args(_words(line))
        if (cell is None) == (given.program is None):
            raise KinstError("%dtrace: give one program, either in the lines below %%dtrace or as "
                             "%dtrace -n 'PROGRAM'")
        options = {name: value if equals else True for name, equals, value in
                   (option.partition("=") for option in given.options)}
        traced = self._session.trace(cell or given.program, *given.arguments, options=options)
        self._names["traced"] = traced
        if given.workload is not None:
            workload = self._text(given.workload)
            with traced:
                if workload.startswith(COMMAND):
                    print(self._session.command(workload.removeprefix(COMMAND).strip()), end="")
                else:
                    self._session.call(workload)
        return traced

    @no_var_expand
    @line_magic
    def explain(self, line: str) -> Explanation:
        """Explain a firing: %explain FUNCTION:OFFSET -c CALL [-n CLAUSE] [--hit N]."""
        parser = MagicWords("explain", add_help=False)
        parser.add_argument("place")
        parser.add_argument("-c", dest="call", required=True)
        parser.add_argument("-n", dest="clause", default="")
        parser.add_argument("--hit", default="1")
        given = parser.parse_args(_words(line))
        return self._session.explain(given.place, self._text(given.call), given.clause,
                                     parse_count(given.hit, "--hit"))

    def _text(self, given: str) -> str:
        """Return the text in the variable NAME for ``{NAME}``, and any other text unchanged."""
        value = self._names.get(given[1:-1]) if given[:1] + given[-1:] == "{}" else None
        return value if isinstance(value, str) else given

    @line_magic
    def disas(self, line: str) -> Disassembly:
        """Show the instructions of a function: %disas FUNCTION."""
        return self._session.disas(_one("disas", "FUNCTION", line))

    @line_magic
    def layout(self, line: str) -> Lines:
        """Show a type, function or variable in C: %layout struct thread, %layout malloc."""
        if not line.strip():
            raise KinstError("%layout: give the name of a type, like struct thread")
        return self._session.layout(line.strip())

    @line_magic
    def stack(self, _line: str) -> Lines:
        """Show the call stack of the machine."""
        return self._session.stack()

    @line_magic
    def who_wrote(self, line: str) -> list[Written]:
        """Show the last stores to a memory location: %who_wrote proc0.p_flag.

        The search needs a recording and begins at its current position.
        """
        return self._session.who_wrote(_one("who_wrote", "PLACE", line))


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise KinstError(f"{line[:60]}: {str(error).lower()}") from None


def _one(magic: str, what: str, line: str) -> str:
    words = line.split()
    if len(words) != 1:
        raise KinstError(f"%{magic}: give exactly one {what}")
    return words[0]
