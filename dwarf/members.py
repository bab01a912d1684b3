"""Offsets of members in the kernel's structures."""

from dwarf.types import Structure, Types, find_member, strip
from emu.host.errors import KinstError


class MemberError(KinstError):
    """Error raised if a structure member is missing from the kernel's types."""


def offset_of(types: Types, structure: str, path: str) -> int:
    """Return the offset in bytes of a member of a type (``struct s``).

    :param path: name of the member; ``a.b`` is a member of a member.
    :raises MemberError: if the types do not have the structure or the member.
    """
    kinds = [kind for kind in map(strip, types.named(structure)) if isinstance(kind, Structure)]
    at = 0
    for name in path.split("."):
        member = find_member(kinds[0], name) if kinds else None
        if member is None:
            raise MemberError(f"{structure} has no member {path} in this kernel's types")
        at += member.offset // 8
        inner = strip(member.type)
        kinds = [inner] if isinstance(inner, Structure) else []
    return at
