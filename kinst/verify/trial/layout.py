"""Access to guest structures by member name; debug data provides the offsets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dwarf.types import Pointer, Structure, Types, find_member, size_of, strip
from emu.host.errors import KinstError

MAX_MEMBERS, MAX_SIZE = 1000, 1 << 20


@dataclass
class Layout:
    """Layout of a structure of the guest, used like ``layout.get(data, "kp_md.instlen")``.

    :param name: C name of the type, such as ``struct kinst_probe`` or ``linker_symval_t``.
    :raises KinstError: if the type does not exist; methods raise it for unknown members.
    """

    types: Types
    name: str
    size: int = field(init=False)
    _structure: Structure = field(init=False)
    _known: dict[str, tuple[int, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        types = [strip(kind) for kind in self.types.named(self.name)]
        if not types or not isinstance(types[0], Structure):
            raise KinstError(f"the debug data has no type '{self.name}': place the module's "
                             ".ko.debug file next to the module")
        self._structure, self.size = types[0], size_of(types[0])
        if self.size > MAX_SIZE:
            raise KinstError(f"damaged debug data: {self.name} is too large ({self.size} bytes)")

    def has(self, member: str) -> bool:
        """Return whether the structure has a member of this name."""
        return find_member(self._structure, member) is not None

    def place(self, path: str) -> tuple[int, int]:
        """Return the (offset, size) in bytes of a member, which may be nested: ``kp_md.disp``."""
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
        """Return (path, offset, size) for members that are neither structures nor pointers.

        Members of nested structures and unions are included.
        """
        members, waiting = list[tuple[str, int, int]](), [("", self._structure, 0)]
        for _ in range(MAX_MEMBERS):  # maximum number of nested structures
            if not waiting:
                break
            path, structure, begin = waiting.pop()
            for member in structure.members[:MAX_MEMBERS]:
                inner, name = strip(member.type), path + member.name
                offset = begin + member.offset // 8
                if isinstance(inner, Structure):
                    waiting.append((f"{name}." if member.name else path, inner, offset))
                elif member.name and not isinstance(inner, Pointer):
                    members.append((name, offset, size_of(inner)))
        return sorted(members, key=lambda one: one[1])

    def get(self, data: bytes, path: str) -> int:
        """Return a member of a structure's bytes as an unsigned integer."""
        offset, size = self.place(path)
        return int.from_bytes(data[offset : offset + size], "little")

    def signed(self, data: bytes, path: str) -> int:
        """Return a member of a structure's bytes as a signed integer."""
        offset, size = self.place(path)
        return int.from_bytes(data[offset : offset + size], "little", signed=True)

    def raw(self, data: bytes, path: str) -> bytes:
        """Return the bytes of a member."""
        offset, size = self.place(path)
        return data[offset : offset + size]

    def build(self, members: Mapping[str, int | bytes]) -> bytes:
        """Return the bytes of a structure with these members; the other members are zero."""
        out = bytearray(self.size)
        for path, value in members.items():
            offset, size = self.place(path)
            content = value if isinstance(value, bytes) else (
                value & (1 << 8 * size) - 1).to_bytes(size, "little")
            out[offset : offset + size] = content[:size].ljust(size, b"\0")
        return bytes(out)
