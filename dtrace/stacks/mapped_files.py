"""Files that a process of the guest has mapped, read from the kernel's memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dwarf.members import MemberError, offset_of
from dwarf.types import Enumeration, Types, strip
from emu.guest.guest import VirtualMemory
from emu.guest.user_memory import MapMembers
from emu.host.errors import MemoryAccessError

MOST_STEPS = 50_000  # maximum number of steps between the entries of a map
MOST_FILES = 1000  # maximum number of mappings that are returned
MOST_SHADOWS = 64  # maximum number of objects that shadow each other
MOST_PARTS = 64  # maximum number of directories in a path
MOST_NAME = 255


@dataclass(frozen=True)
class MappedFile:
    """A mapping of a file.

    :param start: address of its first byte; ``end`` is that after the last one.
    :param offset: offset in the file that is mapped there.
    :param path: path of the file; the last component alone if the rest is unknown.
    """

    start: int
    end: int
    offset: int
    path: str


class MappedFiles:
    """Reader of the maps of processes.

    Large because it keeps the offset of each member on the way from a process to a path.

    :raises MemberError: if the kernel's types do not describe maps.
    """

    def __init__(self, memory: VirtualMemory, types: Types, members: MapMembers) -> None:
        self._memory, self._left_over = memory, 0

        def at(structure: str, member: str) -> int:
            return offset_of(types, f"struct {structure}", member)

        self.space, self.changes = at(*members.space), at(*members.map) + at(*members.changes)
        self.lock, self.shared = at(*members.map) + at(*members.lock), members.shared
        self._header = at(*members.map) + at(*members.header)
        entry = members.entry
        self._left, self._right, self._start, self._end, self._offset, self._mapped = (
            at(entry, name) for name in (members.left, members.right, members.start, members.end,
                                         members.offset, members.mapped))
        self._kind, self._shadows, self._shadowed, self._file = (
            at(members.object, name) for name in (members.kind, members.shadows, members.shadowed,
                                                  members.file))
        self._of_file = _enumerator(types, *members.of_file)
        self._names, self._mount, self._covered = (
            at(*members.names), at(*members.mount), at(*members.covered))
        structure, flags, self._root_bit = members.root
        self._flags = at(structure, flags)
        self._directory, self._length, self._text = (
            at(members.name, name) for name in (members.directory, members.length, members.text))

    def of(self, process: int) -> list[MappedFile]:
        """Return the mappings of files in a process, in the order of their addresses.

        :param process: address of the process's structure.
        :raises MemoryAccessError: if the kernel's structures are damaged.
        """
        space = self._word(process + self.space)
        return list(islice(self._files(space + self._header), MOST_FILES)) if space else []

    def _files(self, header: int) -> Iterator[MappedFile]:
        """Yield the mappings, whose entries are those between the header and itself."""
        entry, self._left_over, paths = header, MOST_STEPS, dict[int, str]()
        while (entry := self._after(entry)) != header:
            file, more = self._file_of(self._word(entry + self._mapped))
            if file and file not in paths:
                paths[file] = self._path(file)
            if file and paths[file]:
                yield MappedFile(self._word(entry + self._start), self._word(entry + self._end),
                                 self._word(entry + self._offset) + more, paths[file])

    def _after(self, entry: int) -> int:
        """Return the entry after another one in the threaded tree."""
        after = self._word(entry + self._right)
        left = self._word(after + self._left)
        if self._word(left + self._start) > self._word(entry + self._start):
            while left != entry:
                after, left = left, self._word(left + self._left)
                self._step(entry)
        self._step(entry)
        return after

    def _step(self, entry: int) -> None:
        self._left_over -= 1
        if not self._left_over:
            raise MemoryAccessError(f"the map with the entry at {entry:#x} is damaged")

    def _file_of(self, one: int) -> tuple[int, int]:
        """Return the file behind an object, or 0, and the offset of the object in the file."""
        offset = 0
        for _ in range(MOST_SHADOWS):
            if not one:
                break
            if self._memory.read(one + self._kind, 1)[0] == self._of_file:
                return self._word(one + self._file), offset
            offset += self._word(one + self._shadowed)
            one = self._word(one + self._shadows)
        return 0, 0

    def _path(self, file: int) -> str:
        """Return the path of a file as the name cache knows it, or "" if it has no name there."""
        parts: list[str] = []
        for _ in range(MOST_PARTS):
            if self._number(file + self._flags, 4) & self._root_bit:
                mount = self._word(file + self._mount)
                file = self._word(mount + self._covered) if mount else 0
                if not file:
                    return "/" + "/".join(reversed(parts))
                continue
            name = self._word(file + self._names)
            if not name:
                break
            length = min(self._number(name + self._length, 1), MOST_NAME)
            parts.append(self._memory.read(name + self._text, length).decode("utf-8", "replace"))
            file = self._word(name + self._directory)
        return parts[0] if parts else ""

    def _word(self, address: int) -> int:
        return self._number(address, 8)

    def _number(self, address: int, size: int) -> int:
        return int.from_bytes(self._memory.read(address, size), "little")


def mapped_files(memory: VirtualMemory, types: Types | None, members: MapMembers | None
                 ) -> MappedFiles | None:
    """Return a reader of maps, or None if the kernel's types do not describe them."""
    if types is None or members is None:
        return None
    try:
        return MappedFiles(memory, types, members)
    except (MemberError, MemoryAccessError):
        return None


def _enumerator(types: Types, enumeration: str, name: str) -> int:
    for kind in map(strip, types.named(f"enum {enumeration}")):
        if isinstance(kind, Enumeration):
            for one, value in kind.values:
                if one == name:
                    return value
    raise MemberError(f"enum {enumeration} has no enumerator {name} in this kernel's types")
