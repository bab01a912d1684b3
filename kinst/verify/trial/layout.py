"""Structures of the guest, by the members' names; where they lie is asked of the debug data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dwarf.types import Pointer, Structure, Types, find_member, size_of, strip
from emu.host.errors import KinstError

MAX_MEMBERS, MAX_SIZE = 1000, 1 << 20


@dataclass
class Layout:
    """A structure: ``layout.get(data, "kp_md.instlen")``.

    :param name: as C spells it: ``struct kinst_probe``, ``linker_symval_t``.
    :raises KinstError: here when there is no such type, later when it has no such member.
    """

    types: Types
    name: str
    size: int = field(init=False)
    _structure: Structure = field(init=False)
    _known: dict[str, tuple[int, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        found = [strip(kind) for kind in self.types.named(self.name)]
        if not found or not isinstance(found[0], Structure):
            raise KinstError(f"the debug data has no '{self.name}': give the module's own (its "
                             ".ko.debug beside it)")
        self._structure, self.size = found[0], size_of(found[0])
        if self.size > MAX_SIZE:
            raise KinstError(f"damaged debug data: {self.name} has {self.size} bytes")

    def has(self, member: str) -> bool:
        return find_member(self._structure, member) is not None

    def place(self, path: str) -> tuple[int, int]:
        """(offset, bytes) of a member, also of one within others: ``kp_md.disp``."""
        if path not in self._known:
            structure, offset, size = self._structure, 0, 0
            for name in path.split("."):
                member = find_member(structure, name)
                if member is None or member.offset % 8:
                    raise KinstError(f"{self.name} has no member '{path}'")
                inner = strip(member.type)
                offset, size = offset + member.offset // 8, size_of(inner)
                if isinstance(inner, Structure):
                    structure = inner
            self._known[path] = offset, size
        return self._known[path]

    def members(self) -> list[tuple[str, int, int]]:
        """(path, offset, bytes) of every member but structures and pointers; of unions all."""
        found, waiting = list[tuple[str, int, int]](), [("", self._structure, 0)]
        for _ in range(MAX_MEMBERS):  # structures within structures
            if not waiting:
                break
            path, structure, begin = waiting.pop()
            for member in structure.members[:MAX_MEMBERS]:
                inner, name = strip(member.type), path + member.name
                offset = begin + member.offset // 8
                if isinstance(inner, Structure):
                    waiting.append((f"{name}." if member.name else path, inner, offset))
                elif member.name and not isinstance(inner, Pointer):
                    found.append((name, offset, size_of(inner)))
        return sorted(found, key=lambda one: one[1])

    def get(self, data: bytes, path: str) -> int:
        """A number, or a pointer, of a structure's bytes; unsigned."""
        offset, size = self.place(path)
        return int.from_bytes(data[offset : offset + size], "little")

    def signed(self, data: bytes, path: str) -> int:
        offset, size = self.place(path)
        return int.from_bytes(data[offset : offset + size], "little", signed=True)

    def raw(self, data: bytes, path: str) -> bytes:
        offset, size = self.place(path)
        return data[offset : offset + size]

    def build(self, members: Mapping[str, int | bytes]) -> bytes:
        """A structure with these members; the others are zero."""
        out = bytearray(self.size)
        for path, value in members.items():
            offset, size = self.place(path)
            content = value if isinstance(value, bytes) else (
                value & (1 << 8 * size) - 1).to_bytes(size, "little")
            out[offset : offset + size] = content[:size].ljust(size, b"\0")
        return bytes(out)
