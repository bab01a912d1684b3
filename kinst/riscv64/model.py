"""Known differences between two models of a riscv64 CPU.

See the unprivileged manual, "Zicntr", and the privileged manual, "sstatus".
"""

from emu.riscv64.registers import NAMES
from kinst.verify.crosscheck.difference import MASK, Difference, Model, StateDifference, destination

RD_SHIFT, RD = 7, 0x1F
UXL = 3 << 32


def _csr(number: int, why: str, bits: int = MASK) -> Difference:
    """Return the difference that applies to every instruction that reads the CSR ``number``.

    Other SYSTEM instructions do not have the CSR's number.
    """
    return Difference((number << 20 | 0x73).to_bytes(4, "little"),
                      destination(RD_SHIFT, RD, NAMES), why,
                      (0xFFF0007F).to_bytes(4, "little"), bits)


INSTRUCTIONS = (
    _csr(0xC00, "cycle: a cycle counter"), _csr(0xC01, "time: a counter"),
    _csr(0xC02, "instret: counted differently"),
    _csr(0x100, "sstatus: Unicorn's model leaves the constant field UXL at 0", UXL),
)
NO_UXL = StateDifference(UXL, "Unicorn's model leaves the constant field UXL at 0")
LEFT = "left by the last exception"
SPIE_SPP = 1 << 5 | 1 << 8
MODEL = Model(
    INSTRUCTIONS, flags=0,
    frame={
        "sstatus": NO_UXL,
        "stval": StateDifference(
            MASK, "EBREAK may set it to 0, as in QEMU 7.2, or to its own address", or_zero=True),
    },
    state={"sstatus": NO_UXL},
    trapped={"sstatus": StateDifference(UXL | SPIE_SPP, LEFT)} | {
        name: StateDifference(MASK, LEFT) for name in ("sepc", "scause", "stval")},
)
