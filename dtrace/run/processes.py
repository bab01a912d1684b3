"""The guest's processes, as a D program names them: ``$target``, and by their numbers."""

from collections.abc import Callable, Mapping

from dtrace.debug.symbols import find_symbol
from dtrace.stacks.threads import Threads
from dtrace.stacks.user_programs import NAME, UserPrograms
from emu.host.errors import KinstError
from emu.machine.machine import Machine
from kinst.probes.traced_program import TracedProgram

MOST_LISTED = 40


class GuestProcesses:
    """:param programs: the files of their programs.
    :param next_program: gives the name of the program that the next process is made for; empty: it
        is not known.
    """

    def __init__(self, machine: Machine, programs: UserPrograms,
                 next_program: Callable[[], str]) -> None:
        self._machine, self._programs, self._next_program = machine, programs, next_program

    @property
    def made_next(self) -> int:
        """The number of the process that is made next; 0: the kernel runs no programs.

        :raises KinstError: when the kernel does not say which it made last.
        """
        if not self._machine.guest.boot.shell_prompt:
            return 0
        made = find_symbol(self._machine.image, self._machine.guest.programs.last_process)
        last = int.from_bytes(self._machine.read(made, 4), "little")
        return last + 1 if last else 0

    def check(self, process: int) -> None:
        """:raises KinstError: when there is no such process."""
        known = {thread.pid: thread.process for thread in Threads(self._machine).all()}
        if process not in known:
            raise KinstError(f"failed to grab pid {process}: {_missing(process, known)}")

    def program(self, process: int) -> TracedProgram:
        """What a process runs that is there, or that is made next.

        :raises KinstError: when there is no such process, or its program's file is not known.
        """
        known = {thread.pid: thread.process for thread in Threads(self._machine).all()}
        name = known.get(process, "")
        if not name and process == self.made_next:
            name = self._next_program()
        if not name:
            raise KinstError(f"{_missing(process, known)}; the one that a command is given to is "
                             "$target")
        file, kernel = self._programs.file(name[:NAME]), self._machine.image.machine
        if file.machine != kernel:
            raise KinstError(f"{file.path}: a program for {file.machine}; the kernel is for "
                             f"{kernel}")
        other = self._programs.other_code(name[:NAME])
        if other is not None:
            raise KinstError(f"process {process} ({name[:NAME]}) has other code at {other:#x} than "
                             f"{file.path}, which its probes would be made from")
        return TracedProgram(process, name[:NAME], file, process not in known)


def _missing(process: int, known: Mapping[int, str]) -> str:
    there = ", ".join(f"{pid} ({known[pid]})" for pid in sorted(known)[:MOST_LISTED] if pid)
    return f"there is no process {process}; there are {there or 'none'}"
