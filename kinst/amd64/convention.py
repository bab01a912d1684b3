"""C calling convention of amd64 (System V ABI, AMD64 supplement, 3.2.3)."""

from kinst.code.convention import Convention, Linkage

CONVENTION = Convention(
    registers=("rdi", "rsi", "rdx", "rcx", "r8", "r9"), stacked_at=8, by_reference=False,
    splits=False, even=False, refills=True, packed_in_memory=True,
    result_first=True,
    preserved=frozenset("rbx rbp rsp r12 r13 r14 r15".split()),
    linkage=Linkage(first=16, entry=16, pushed=8))
