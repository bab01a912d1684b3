"""Names of addresses in user programs of the guest, from the files of the programs.

A frame of a user stack is a 64-bit word: the address, and above it the number of the process's
name.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from emu.host.errors import ImageError

ADDRESS = (1 << 48) - 1  # highest address of a user program
NUMBERS = (1 << 13) - 1  # highest ID of a process name; KernelSymbols uses the higher bits
NAME = 19  # maximum length of a process's name (FreeBSD's MAXCOMLEN)


class UserPrograms:
    """User programs of the guest, identified by the names of their processes.

    :param files: file of each program by its process's name; a file that cannot be read provides no
        functions.
    :param chosen: files specified by the user. They take precedence, and must have the same code as
        those in ``files``.
    """

    def __init__(self, files: Mapping[str, Path] | None = None,
                 chosen: Mapping[str, Path] | None = None) -> None:
        self._own = {name[:NAME]: path for name, path in (files or {}).items()}
        self._chosen = {name[:NAME]: path for name, path in (chosen or {}).items()}
        self._files = self._own | self._chosen
        self._known: dict[str, ProgramFile | ImageError] = {}
        self._names: list[str] = [""]

    def frame(self, name: str, address: int) -> int:
        """Encode an address and the name of its process as a stack word."""
        return self.number(name) << 48 | address & ADDRESS

    def number(self, name: str) -> int:
        """Return the number that represents a process name in stack words, or 0 if none is left."""
        if name not in self._names and len(self._names) < NUMBERS:
            self._names.append(name)
        return self._names.index(name) if name in self._names else 0

    def is_frame(self, word: int) -> bool:
        """Return whether a stack word is a frame of a user program."""
        return 0 < word >> 48 < len(self._names)

    def line(self, word: int, offset: bool = True) -> str:
        """Format a frame as ustack() of dtrace(1) does, or without an offset as usym() does."""
        function, suffix = self._function(word), ""
        if function is None:
            return f"{self.name(word)}`{word & ADDRESS:#x}"
        if offset and word & ADDRESS != function.address:
            suffix = f"+{(word & ADDRESS) - function.address:#x}"
        return f"{self.name(word)}`{function.name}{suffix}"

    def name(self, word: int) -> str:
        """Return the process name in a stack word."""
        return self._names[word >> 48]

    def start(self, word: int) -> int:
        """Return the stack word for the start of the function that contains a frame's address."""
        function = self._function(word)
        return word if function is None else word & ~ADDRESS | function.address

    def _function(self, word: int) -> Symbol | None:
        try:
            return self.file(self.name(word)).symbols.function_at(word & ADDRESS)
        except ImageError:
            return None

    def file(self, name: str) -> ProgramFile:
        """Return the program run by processes with a given name, from the cache if possible.

        :raises ImageError: if its file is unknown, or is not a program.
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


def walk(pc: int, frame: int, record: tuple[int, int], read: Callable[[int], int | None],
         most: int) -> list[int]:
    """Return the addresses of a user stack, innermost first, by following its frame records.

    Programs keep this chain if they are compiled with a frame pointer. The outermost record has 0
    as the caller's frame.

    :param record: offsets in a frame record of the caller's frame and of the return address.
    :param read: returns a word of the program's memory, or None if no memory is mapped there.
    :param most: maximum number of addresses.
    """
    addresses = [pc]
    saved, returns = record
    while len(addresses) < most and frame and not frame & 7 and frame <= ADDRESS:
        caller, outer = read(frame + returns), read(frame + saved)
        if not caller or caller > ADDRESS or not outer:
            break
        addresses.append(caller)
        if outer <= frame:
            break
        frame = outer
    return addresses[:most]
