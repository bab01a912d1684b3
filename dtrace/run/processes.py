"""Processes of the guest, which D programs refer to by ``$target`` or a process ID."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from dtrace.debug.symbols import find_symbol
from dtrace.run.advance_run import RunProgram
from dtrace.stacks.mapped_files import MappedFile
from dtrace.stacks.threads import Threads
from dtrace.stacks.user_programs import NAME, UserPrograms, moves
from emu.elf.program import ProgramFile
from emu.host.errors import KinstError
from emu.machine.machine import Machine
from kinst.probes.traced_program import TracedObject, TracedProgram

MOST_LISTED = 40


class GuestProcesses:
    """Processes of the guest and the programs that they run.

    :param programs: the files of the programs.
    :param next_program: returns the name of the program for which the next process will be created;
        empty: unknown.
    :param mapped: returns the files that a process has mapped, given the address of its structure.
    :param in_advance: returns the programs that later processes will run, by process ID and name
        (``advance_run.py``); None: that cannot be known.
    """

    def __init__(self, machine: Machine, programs: UserPrograms, next_program: Callable[[], str],
                 mapped: Callable[[int], list[MappedFile]],
                 in_advance: Callable[[], Mapping[tuple[int, str], RunProgram]] | None) -> None:
        self._machine, self._programs, self._next_program = machine, programs, next_program
        self._mapped, self._in_advance = mapped, in_advance
        self._known: dict[tuple[int, str], TracedProgram] = {}
        self._later: Mapping[tuple[int, str], RunProgram] | KinstError | None = None

    @property
    def made_next(self) -> int:
        """ID of the next process, or 0 if the ID is unknown or the kernel runs no programs.

        :raises KinstError: if the kernel lacks the variable with the last process ID.
        """
        if not self._machine.guest.boot.shell_prompt:
            return 0
        variable = find_symbol(self._machine.image, self._machine.guest.programs.last_process)
        last = int.from_bytes(self._machine.read(variable, 4), "little")
        if not last:
            return 0
        # Some processes of the kernel have higher numbers; the next process gets a free one.
        used = {thread.pid for thread in Threads(self._machine).all()}
        return next(number for number in range(last + 1, last + len(used) + 2)
                    if number not in used)

    def shell(self) -> dict[str, int]:
        """Return the identity of the guest's shell as values of ``$pid``, ``$ppid`` and so on.

        It is empty if no shell waits for a command, or if several do.
        """
        session = self._machine.guest.boot.session
        if session is None:
            return {}
        found = [identity for name, identity in Threads(self._machine).reading_terminals()
                 if name != session.login]
        return found[0] if len(found) == 1 else {}

    def check(self, process: int) -> None:
        """Check that a process with a given ID exists.

        :raises KinstError: if it does not exist.
        """
        known = {thread.pid: thread.process for thread in Threads(self._machine).all()}
        if process not in known:
            raise KinstError(f"failed to grab pid {process}: {_missing(process, known)}")

    def program(self, process: int) -> TracedProgram:
        """Return the program that a process runs, or that the next process to be created will run.

        :raises KinstError: if there is no such process, or its program's file is unknown or wrong.
        """
        known = {thread.pid: thread.process for thread in Threads(self._machine).all()}
        name = known.get(process, "")
        if not name and process == self.made_next:
            name = self._next_program()
        if not name and process:
            name = self._later_name(process)
        if not name:
            raise KinstError(f"{_missing(process, known)}; $target is the process that runs the "
                             "-c command")
        if not self._programs.knows(name[:NAME]):
            found = self._of_maps(process, name[:NAME], process in known)
            if found is not None:
                return found
        file, kernel = self._programs.file(name[:NAME]), self._machine.image.machine
        if file.machine != kernel:
            raise KinstError(f"{file.path}: this program is for {file.machine}, but the kernel is "
                             f"for {kernel}")
        address = self._programs.other_code(name[:NAME])
        if address is not None:
            raise KinstError(f"process {process} ({name[:NAME]}): the code at {address:#x} differs "
                             f"from {file.path}; specify the file of this program with --program")
        return TracedProgram(process, name[:NAME], (TracedObject(name[:NAME], file, 0),),
                             process not in known)

    def _later_name(self, process: int) -> str:
        """Return the program that a later process will run first, or "" if it will not exist.

        :raises KinstError: if running the command in advance fails.
        """
        names = [(not one.ran, name) for (number, name), one in self._all_later().items()
                 if number == process]
        return min(names, key=lambda one: one[0])[1] if names else ""

    def _of_maps(self, process: int, name: str, exists: bool) -> TracedProgram | None:
        """Return the program of a process by the files that it maps, or None if they are unknown.

        :raises KinstError: if running the command in advance fails.
        """
        if (process, name) in self._known:
            return self._known[process, name]
        for own, files in [(name, self._files_of(process))] if exists else (
                self._later_files(process, name)):
            objects = self._objects(own, files, self._programs.mapped_file)
            if objects and objects[0].name[:NAME] == own:
                self._known[process, name] = TracedProgram(process, own, objects, not exists)
                return self._known[process, name]
        return None

    def programs(self, process: int | None) -> Sequence[TracedProgram]:
        """Return the programs that a process runs, one after the other, as far as they are known.

        :param process: its ID; None: the programs of all processes, also of later ones.
        :raises KinstError: if there is no such process, or running the command in advance fails.
        """
        known = {thread.pid: thread.process for thread in Threads(self._machine).all()}
        found = list[TracedProgram]()
        for number, name in known.items():
            if number and name and process in (None, number):
                found += self._traced(number, name[:NAME], self._files_of(number), False)
        for (number, name), one in self._all_later().items():
            if process in (None, number):
                found += self._traced(number, name, list(one.files), one.executed)
        if not found and process is not None:
            return [self.program(process)]
        return found

    def _traced(self, process: int, name: str, files: Sequence[MappedFile], executed: bool
                ) -> Iterable[TracedProgram]:
        if self._programs.knows(name):
            yield TracedProgram(
                process, name, (TracedObject(name, self._programs.file(name), 0),), executed)
        elif objects := self._objects(name, files, self._programs.bare_file):
            own = {one.file.path for one in objects if one.name[:NAME] == name}
            yield TracedProgram(process, name, objects, executed, len(own) > 1)

    def _files_of(self, process: int) -> list[MappedFile]:
        return self._mapped(next(thread.address for thread in Threads(self._machine).all()
                                 if thread.pid == process))

    @property
    def looked_ahead(self) -> bool:
        """Whether anything depended on the programs of processes that do not exist yet."""
        return self._later is not None

    def _all_later(self) -> Mapping[tuple[int, str], RunProgram]:
        """Return the programs that later processes will run, from the cache if possible."""
        if isinstance(self._later, KinstError):
            raise self._later
        if self._later is None:
            try:
                self._later = {} if self._in_advance is None else self._in_advance()
            except KinstError as error:
                self._later = error
                raise
        return self._later

    def _later_files(self, process: int, name: str) -> Iterator[tuple[str, list[MappedFile]]]:
        """Yield the names of programs that a later process may run, with the files it maps.

        If it runs a script, its name is that of the interpreter.
        """
        later = self._all_later()
        if (process, name) in later:
            yield name, list(later[process, name].files)
        for (number, other), one in later.items():
            if number == process and other != name and one.ran:
                yield other, list(one.files)

    def _objects(self, name: str, files: Sequence[MappedFile], read: Callable[[str], ProgramFile]
                 ) -> tuple[TracedObject, ...]:
        """Return the programs and shared objects among mapped files, the named one first.

        :param read: returns a file by its path.
        """
        made = list[TracedObject]()
        for path in dict.fromkeys(one.path for one in files):
            try:
                file = read(path)
            except KinstError:
                continue  # it is not a program, or has no symbols
            parts = [one for one in files if one.path == path]
            made += [TracedObject(PurePosixPath(path).name, file, moved)
                     for moved in moves(file, parts)]
        return tuple(sorted(made, key=lambda one: one.name[:NAME] != name))


def _missing(process: int, known: Mapping[int, str]) -> str:
    existing = ", ".join(f"{pid} ({known[pid]})" for pid in sorted(known)[:MOST_LISTED] if pid)
    return f"process {process} does not exist; existing processes: {existing or 'none'}"
