"""Functions of a session that walk through source lines and functions."""

import builtins
from collections.abc import Iterator
from typing import Any

from emu.host.errors import KinstError
from kinst_emu.api.walk import Here, Reason, Walk
from kinst_emu.notebook.values import VariableTable
from kinst_emu.shell.session import Moving, Session


class Walking:
    """Functions of a session that use one ``Walk`` for as long as the machine is the same.

    :param session: the session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._walk: Walk | None = None

    def verbs(self) -> dict[str, Any]:
        """Return the functions for the user's namespace, keyed by name."""
        return {name: getattr(self, name) for name in (
            "args", "locals", "up", "down", "next", "enter", "finish", "why")}

    @property
    def walk(self) -> Walk:
        """The walk through the session's machine or recording.

        :raises KinstError: when no machine is booted.
        """
        machine = self._session.machine
        if self._walk is None or self._walk.machine is not machine:
            self._walk = Walk(self._session.recording or machine, self._session.sources)
        return self._walk

    def args(self) -> VariableTable:
        """Return the parameters of the selected function: ``args()["td"].td_tid``."""
        return self.walk.args()

    def locals(self) -> VariableTable:
        """Return the parameters and local variables of the selected function.

        Python's own function is ``builtins.locals``.
        """
        return self.walk.locals()

    def up(self, count: int = 1) -> Here:
        """Select the caller of the selected function, for args(), locals(), finish() and why()."""
        return self.walk.up(count)

    def down(self, count: int = 1) -> Here:
        """Select the function that the selected one called."""
        return self.walk.down(count)

    def next(self, count: Any = 1, *default: Any) -> Any:
        """Go to the next source line, over calls; ``next(-1)`` goes back in a recording.

        For an iterator, this is Python's own ``next``.
        """
        if not isinstance(count, int) or default:
            if not isinstance(count, Iterator):
                raise KinstError("next() takes a number of lines, or an iterator")
            return builtins.next(count, *default)
        return self._moved("next()", count, lambda walk: walk.next(count))

    def enter(self, count: int = 1) -> Here:
        """Go to the next source line, into calls; ``enter(-1)`` goes back in a recording."""
        return self._moved("enter()", count, lambda walk: walk.step(count))

    def finish(self, back: bool = False) -> Here:
        """Run until the selected function returns, and show what it returned.

        :param back: go back to its call, in a recording.
        """
        return self._moved("finish()", 1, lambda walk: walk.finish(back))

    def why(self, what: str | int = "", size: int = 8) -> Reason:
        """Return why a variable, register or place in memory has its value, in a recording.

        :param what: by default, why the current instruction is executed.
        """
        if not isinstance(what, str | int) or not isinstance(size, int):
            raise KinstError("why() takes the name of a variable or register, a C expression, or "
                             "an address and a size")
        return self.walk.why(what, size)

    def _moved(self, what: str, count: int, move: Any) -> Here:
        if not isinstance(count, int):
            raise KinstError(f"{what} takes a number of lines")
        if not count:
            raise KinstError(f"{what} of 0 lines: give 1 or more, or -1 to go back")
        walk = self.walk
        with Moving(self._session, what, True):
            here: Here = move(walk)
        return here
