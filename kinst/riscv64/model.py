"""Where two models of a riscv64 CPU may rightly differ (unprivileged manual, "Zicntr"; privileged
manual, "sstatus")."""

from kinst.difference import Difference, destination

RD_SHIFT, RD = 7, 0x1F
UXL = 3 << 32
ABI = ("zero ra sp gp tp t0 t1 t2 s0 s1 a0 a1 a2 a3 a4 a5 a6 a7 "
       "s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 t3 t4 t5 t6").split()


def _csr(number: int, why: str) -> Difference:
    """Any instruction that reads a CSR: SYSTEM with a funct3 that is not 0."""
    return Difference((number << 20 | 0x73).to_bytes(4, "little"),
                      destination(RD_SHIFT, RD, ABI), why, (0xFFF0007F).to_bytes(4, "little"))


DIFFERENCES = (
    _csr(0xC00, "cycle: a cycle counter"), _csr(0xC01, "time: a counter"),
    _csr(0xC02, "instret: counted otherwise"),
    _csr(0x100, "sstatus: Unicorn's model leaves UXL, a constant, 0"),
)
FRAME_MASKS = {
    "sstatus": (UXL, "Unicorn's model leaves UXL, a constant, 0"),
    "stval": ((1 << 64) - 1, "EBREAK may leave 0 there, as QEMU 7.2 does, or its own address"),
}
