"""C calling convention of arm64 (AAPCS64, 6.8.2)."""

from kinst.code.convention import Convention, Linkage

CONVENTION = Convention(
    registers=tuple(f"x{n}" for n in range(8)), stacked_at=0, by_reference=True, splits=False,
    even=True, refills=False, packed_in_memory=False, result_first=False,
    preserved=frozenset((*(f"x{n}" for n in range(18, 30)), "sp")),
    linkage=Linkage(first=32, entry=16, pushed=0))
