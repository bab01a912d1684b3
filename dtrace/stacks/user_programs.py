"""Names of addresses in user programs of the guest, from the files of the programs.

A frame of a user stack is a 64-bit word: the address, and above it a number.  The number stands for
all processes with a name if the file of their program is known beforehand, and otherwise for one
process, whose mapped files are known (``mapped_files.py``).
"""

import bisect
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from dtrace.stacks.mapped_files import MappedFile
from emu.elf.program import ProgramFile, needs_loader
from emu.elf.symbols import Symbol
from emu.host.errors import ImageError, KinstError
from emu.host.input_file import InputFile

ADDRESS = (1 << 48) - 1  # highest address of a user program
NUMBERS = (1 << 13) - 1  # highest ID of a process name; KernelSymbols uses the higher bits
MOST_MAPPED = 20_000  # maximum number of mappings kept for a process
NOWHERE = (0, 0, 0, 0, 0)  # state of a file that is not the host's
TRAMPOLINE = "<signal handler called>"  # as in gdb
NAME = 19  # maximum length of a process's name (FreeBSD's MAXCOMLEN)


class UserPrograms:
    """User programs of the guest, identified by the names of their processes.

    :param files: file of each program by its process's name; a file that cannot be read provides no
        functions.
    :param chosen: files specified by the user. They take precedence, and must have the same code as
        those in ``files``.
    :param contents: reads a file of the guest, given its path; raises ``KinstError``.
    :param debug_file: as in ``GuestPrograms``.
    """

    def __init__(self, files: Mapping[str, Path] | None = None,
                 chosen: Mapping[str, Path] | None = None,
                 contents: Callable[[str], bytes] | None = None, debug_file: str = "") -> None:
        self._own = {name[:NAME]: path for name, path in (files or {}).items()}
        self._chosen = {name[:NAME]: path for name, path in (chosen or {}).items()}
        self._files = self._own | self._chosen
        self._known: dict[str, ProgramFile | KinstError] = {}
        self._names: list[str] = [""]
        self._fixed: dict[str, bool] = {}  # answers of ``knows``
        self._contents, self._debug_file = contents, debug_file
        self._objects: dict[str, ProgramFile | KinstError] = {}  # path in the guest -> file
        self._bare: dict[str, ProgramFile | KinstError] = {}  # the same for files without symbols
        # Number -> the files that its process has mapped, which do not conflict
        self._mapped: dict[int, dict[MappedFile, None]] = {}
        self._numbers: dict[tuple[str, int], int] = {}  # (name, process) -> number
        self.changes = 0  # how often a number got more files
        self.trampolines: set[int] = set()  # stack words in code that signal handlers return to

    def frame(self, name: str, address: int) -> int:
        """Encode an address and the name of its process as a stack word."""
        return frame_word(self.number(name), address)

    def knows(self, name: str) -> bool:
        """Return whether the program that processes of a name run is known, and all their code."""
        if name not in self._fixed:
            self._fixed[name] = name in self._chosen
            if name in self._own and not self._fixed[name] and not needs_loader(self._own[name]):
                with contextlib.suppress(ImageError):  # it is not a program, or has no symbols
                    self.file(name)
                    self._fixed[name] = True
        return self._fixed[name]

    def number(self, name: str, process: int = 0, files: Sequence[MappedFile] = ()) -> int:
        """Return the number of a process in stack words, or 0 if none is left.

        A process gets another number when it maps a file where it had mapped another one.

        :param process: its ID; 0: any process with the name.
        :param files: the files that it has mapped; those that it had mapped earlier are known.
        """
        if not name and not files:
            return 0
        key = name, process if files else 0
        number = self._numbers.get(key)
        if number is not None and not files:
            return number
        known = None if number is None else self._mapped[number]
        if known is None or any(_conflict(one, other) for one in files if one not in known
                                for other in known):
            if len(self._names) >= NUMBERS:
                return self._numbers.get((name, 0), 0)
            number = self._numbers[key] = len(self._names)
            self._names.append(name)
            if not files:
                return number
            known = self._mapped[number] = {}
        assert number is not None
        if len(known) < MOST_MAPPED and not known.keys() >= set(files):
            known.update(dict.fromkeys(files))
            self.changes += 1
        return number

    def belongs_to_one(self, word: int) -> bool:
        """Return whether a stack word belongs to one process, and not to all with a name."""
        return word >> 48 in self._mapped

    def is_frame(self, word: int) -> bool:
        """Return whether a stack word is a frame of a user program."""
        return 0 < word >> 48 < len(self._names)

    def line(self, word: int, offset: bool = True, is_return: bool = False) -> str:
        """Format a frame as ustack() of dtrace(1) does, or without an offset as usym() does.

        :param is_return: whether the address is a return address.  If a function ends with a call,
            it is the address of the next function.
        """
        if word in self.trampolines and self.place(word) is None:
            return f"{self.name(word)}`{TRAMPOLINE}"
        function, moved = self._function(word - is_return)
        if function is None:
            return f"{self.name(word)}`{word & ADDRESS:#x}"
        suffix, inside = "", (word & ADDRESS) - moved - function.address
        if offset and inside:
            suffix = f"+{inside:#x}"
        return f"{self.name(word)}`{function.name}{suffix}"

    def name(self, word: int) -> str:
        """Return the name of the mapped file at a stack word's address, or that of the process."""
        mapped = self._mapped_at(word)
        return self._names[word >> 48] if mapped is None else PurePosixPath(mapped.path).name

    def start(self, word: int) -> int:
        """Return the stack word for the start of the function that contains a frame's address."""
        function, moved = self._function(word)
        if function is None or not 0 <= moved + function.address <= ADDRESS:
            return word
        return word & ~ADDRESS | moved + function.address

    def module_start(self, word: int) -> int:
        """Return the stack word for the start of the mapped file at a frame's address.

        Return the word without an address if there is none.
        """
        mapped = self._mapped_at(word)
        if mapped is None:
            return word & ~ADDRESS
        return word & ~ADDRESS | min(one.start for one in self._mapped[word >> 48]
                                     if one.path == mapped.path)

    def _mapped_at(self, word: int) -> MappedFile | None:
        address = word & ADDRESS
        return next((one for one in self._mapped.get(word >> 48, ())
                     if one.start <= address < one.end), None)

    def _function(self, word: int) -> tuple[Symbol | None, int]:
        """Return the function at a frame's address, and how far its file was moved."""
        place = self.place(word)
        if place is None:
            return None, 0
        file, moved = place
        return file.symbols.function_at((word & ADDRESS) - moved), moved

    def place(self, word: int) -> tuple[ProgramFile, int] | None:
        """Return the file at a frame's address, and how far it was moved; None if unknown."""
        number = word >> 48
        try:
            if number not in self._mapped:
                if number >= len(self._names):
                    return None
                program = self.file(self._names[number])
                return (program, 0) if program.holds(word & ADDRESS) else None
            mapped = self._mapped_at(word)
            if mapped is None:
                return None
            file = self.mapped_file(mapped.path)
        except KinstError:
            return None
        for moved in moves(file, [one for one in self._mapped[number]
                                  if one.path == mapped.path]):
            if moved in file.moves(mapped.start, mapped.offset):
                return file, moved
        return None

    def mapped_file(self, path: str) -> ProgramFile:
        """Return a program or shared object of the guest, from the cache if possible.

        :raises KinstError: if it cannot be read, is not such a file, or has no symbols.
        """
        return _cached(self._objects, path, self._of_guest)

    def bare_file(self, path: str) -> ProgramFile:
        """Return a program or shared object of the guest, which may lack symbols.

        :raises KinstError: if it cannot be read, or is not such a file.
        """
        try:
            return self.mapped_file(path)
        except ImageError:
            return _cached(self._bare, path, lambda one: ProgramFile(
                Path(one), self._taken(one), True, bare=True))

    def _of_guest(self, path: str) -> ProgramFile:
        file = self._taken(path)
        if self._debug_file:
            with contextlib.suppress(KinstError):  # most files have none
                return ProgramFile(Path(path), file, True,
                                   self._taken(self._debug_file.format(path)))
        return ProgramFile(Path(path), file, True)

    def _taken(self, path: str) -> InputFile:
        if self._contents is None or not path.startswith("/"):
            raise ImageError(f"{path}: this file of the guest cannot be read here")
        return InputFile(Path(path), memoryview(self._contents(path)), NOWHERE)

    def file(self, name: str) -> ProgramFile:
        """Return the program run by processes with a given name, from the cache if possible.

        :raises ImageError: if its file is unknown, or is not a program.
        """
        return _cached(self._known, name, self._load)

    def other_code(self, name: str) -> int | None:
        """Return the first address at which the user's file differs from the guest's program.

        Return None if both have the same code, or if one of the two is unknown.

        :raises ImageError: if a file cannot be read.
        """
        own = self._own.get(name)
        if own is None or name not in self._chosen or own == self._chosen[name]:
            return None
        return self.file(name).first_other(ProgramFile(own))

    def _load(self, name: str) -> ProgramFile:
        path = self._files.get(name)
        if path is None:
            raise ImageError(f"the file of program '{name}' is unknown; give it with --program "
                             "FILE (it must have symbols)")
        return ProgramFile(path)


def _cached(known: dict[str, ProgramFile | KinstError], key: str,
            load: Callable[[str], ProgramFile]) -> ProgramFile:
    """Return a file, or raise the error, that ``load`` made the first time."""
    if key not in known:
        try:
            known[key] = load(key)
        except KinstError as error:
            known[key] = error
    found = known[key]
    if isinstance(found, KinstError):
        raise found
    return found


def frame_word(number: int, address: int) -> int:
    """Encode an address and the number of its process as a stack word."""
    return number << 48 | address & ADDRESS


def _conflict(one: MappedFile, other: MappedFile) -> bool:
    """Return whether two mappings cannot exist at once, or name an address differently."""
    return one.start < other.end and other.start < one.end and (
        one.path != other.path or one.start - one.offset != other.start - other.offset)


def moves(file: ProgramFile, parts: Sequence[MappedFile]) -> list[int]:
    """Return how far a file was moved each time when it was mapped.

    Segments may share pages of the file, so the mapping of one could also be that of another one,
    and a loader maps the first page alone before it maps the segments.  So the first segment must
    be mapped and, if there is such an answer, those with code, too.  Of answers that overlap, those
    with the most segments are right.  Data that the process has written may be missing from the
    mappings.

    :param parts: mappings of the file, which may be of different times.
    """
    mapped: dict[int, list[MappedFile]] = {}  # address of the file's first byte -> its mappings
    for one in parts:
        mapped.setdefault(one.start - one.offset, []).append(one)
    # Possible answer -> whether all code is mapped, and the number of segments that are mapped
    found: dict[int, tuple[bool, int]] = {}
    for one in parts:
        for moved in file.moves(one.start, one.offset):
            if moved in found:
                continue
            there = [any(part.start <= at + moved < part.end
                         for part in mapped.get(at + moved - offset, ()))
                     for at, offset, _code in file.first_pages]
            whole = all(is_mapped or not code for is_mapped, (_at, _offset, code) in zip(
                there, file.first_pages, strict=True))
            found[moved] = whole, sum(there) if there[0] else 0
    kept: list[int] = []  # in ascending order
    for key in sorted(set(found.values()), reverse=True):
        if not key[1] or (kept and not key[0]):
            continue
        kept += [moved for moved, one in found.items() if one == key and not any(
            abs(near - moved) < file.extent for near in _neighbours(kept, moved))]
        kept.sort()
    known = set(kept)
    return [moved for moved in found if moved in known]


def _neighbours(numbers: Sequence[int], number: int) -> Sequence[int]:
    """Return the numbers next to a number in an ascending sequence."""
    at = bisect.bisect(numbers, number)
    return numbers[max(at - 1, 0) : at + 1]
