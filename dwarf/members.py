"""Where members of the kernel's types are."""

from dwarf.types import Structure, Types, find_member, strip
from emu.host.errors import KinstError


class MemberError(KinstError):
    """The kernel's types lack a member."""


def offset_of(types: Types, structure: str, path: str) -> int:
    """The offset, in bytes, of a member (``a.b``: of a member's) of a type (``struct s``).

    :raises MemberError: naming what the types lack.
    """
    kinds = [kind for kind in map(strip, types.named(structure)) if isinstance(kind, Structure)]
    at = 0
    for name in path.split("."):
        member = find_member(kinds[0], name) if kinds else None
        if member is None:
            raise MemberError(f"{structure} has no {path} in this kernel's types")
        at += member.offset // 8
        inner = strip(member.type)
        kinds = [inner] if isinstance(inner, Structure) else []
    return at
