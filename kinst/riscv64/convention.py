"""C calling convention of riscv64 (psABI, "Integer Calling Convention")."""

from kinst.code.convention import Convention, Linkage

CONVENTION = Convention(
    registers=tuple(f"a{n}" for n in range(8)), stacked_at=0, by_reference=True, splits=True,
    even=False, refills=False, packed_in_memory=False, result_first=True,
    preserved=frozenset(("sp", "gp", "tp", *(f"s{n}" for n in range(12)))),
    linkage=Linkage(first=32, entry=16, pushed=0))
