"""Programs that run on a guest, as far as their files are known: the functions of their addresses.

A frame of a user's stack is a word: the address, and above it the number of the process's name.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from emu.host.errors import ImageError

ADDRESS = (1 << 48) - 1  # a program's lie below that
NUMBERS = (1 << 13) - 1  # the bits above it: KernelSymbols uses those that follow
NAME = 19  # characters of a process's name that a kernel keeps (FreeBSD's MAXCOMLEN)


class UserPrograms:
    """:param files: processes' names, and the files of their programs; what cannot be read of them
        has no names.
    :param chosen: such files that the user has named: they come first, and must have the code of
        the others.
    """

    def __init__(self, files: Mapping[str, Path] | None = None,
                 chosen: Mapping[str, Path] | None = None) -> None:
        self._own = {name[:NAME]: path for name, path in (files or {}).items()}
        self._chosen = {name[:NAME]: path for name, path in (chosen or {}).items()}
        self._files = self._own | self._chosen
        self._known: dict[str, ProgramFile | ImageError] = {}
        self._names: list[str] = [""]

    def frame(self, name: str, address: int) -> int:
        """The word of a frame."""
        return self.number(name) << 48 | address & ADDRESS

    def number(self, name: str) -> int:
        """That of a process's name."""
        if name not in self._names and len(self._names) < NUMBERS:
            self._names.append(name)
        return self._names.index(name) if name in self._names else 0

    def is_frame(self, word: int) -> bool:
        return 0 < word >> 48 < len(self._names)

    def line(self, word: int, offset: bool = True) -> str:
        """A frame as ustack() of dtrace(1) prints it; without the offset, as usym() does."""
        function, behind = self._function(word), ""
        if function is None:
            return f"{self.name(word)}`{word & ADDRESS:#x}"
        if offset and word & ADDRESS != function.address:
            behind = f"+{(word & ADDRESS) - function.address:#x}"
        return f"{self.name(word)}`{function.name}{behind}"

    def name(self, word: int) -> str:
        """The name of a frame's process."""
        return self._names[word >> 48]

    def start(self, word: int) -> int:
        """The frame at the start of its function."""
        function = self._function(word)
        return word if function is None else word & ~ADDRESS | function.address

    def _function(self, word: int) -> Symbol | None:
        try:
            return self.file(self.name(word)).symbols.function_at(word & ADDRESS)
        except ImageError:
            return None

    def file(self, name: str) -> ProgramFile:
        """A program, by its process's name; asked for again, the same one.

        :raises ImageError: when its file is not known, or is none.
        """
        if name not in self._known:
            try:
                self._known[name] = self._load(name)
            except ImageError as error:
                self._known[name] = error
        known = self._known[name]
        if isinstance(known, ImageError):
            raise known
        return known

    def other_code(self, name: str) -> int | None:
        """The first address at which the guest's own program of a name has other code than the file
        that the user has named for it; None: none, or it is not known.

        :raises ImageError: when a file cannot be read.
        """
        own = self._own.get(name)
        if own is None or name not in self._chosen or own == self._chosen[name]:
            return None
        return self.file(name).first_other(ProgramFile(own))

    def _load(self, name: str) -> ProgramFile:
        path = self._files.get(name)
        if path is None:
            raise ImageError(f"the file of the program '{name}' is not known: --program FILE names "
                             "it (its symbols are looked for there)")
        return ProgramFile(path)


def walk(pc: int, frame: int, record: tuple[int, int], read: Callable[[int], int | None],
         most: int) -> list[int]:
    """The addresses of a program's stack, inner ones first, by the chain of frame records that it
    keeps when it was compiled with a frame pointer.  Where it began, the caller's frame is 0.

    :param record: where a record has the caller's frame, and where the return address.
    :param read: gives a word of the program's memory; None: there is none.
    """
    found = [pc]
    saved, returns = record
    while len(found) < most and frame and not frame & 7 and frame <= ADDRESS:
        back, outer = read(frame + returns), read(frame + saved)
        if not back or back > ADDRESS or not outer:
            break
        found.append(back)
        if outer <= frame:
            break
        frame = outer
    return found[:most]
