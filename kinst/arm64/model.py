"""Known differences between two models of an arm64 CPU (Arm ARM, C6.2 "MRS", D19)."""

from kinst.verify.crosscheck.difference import MASK, Difference, Model, StateDifference, destination

RT = 0x1F
MRS = 0xFFFFFFE0


def _mrs(op0: int, op1: int, crn: int, crm: int, op2: int, mask: int, why: str) -> Difference:
    word = 0xD5200000 | op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
    return Difference(word.to_bytes(4, "little"), destination(0, RT, "x"), why,
                      mask.to_bytes(4, "little"))


INSTRUCTIONS = (
    _mrs(3, 3, 14, 0, 1, MRS, "CNTPCT_EL0: a counter"),
    _mrs(3, 3, 14, 0, 2, MRS, "CNTVCT_EL0: a counter"),
    _mrs(3, 3, 9, 13, 0, MRS, "PMCCNTR_EL0: a cycle counter"),
    # op0 3, op1 0, CRn 0, any CRm and op2
    _mrs(3, 0, 0, 0, 0, 0xFFFFF000, "an identification register"),
)
FLAGS = 0xF << 28  # NZCV
LEFT = "left by the last exception"
MODEL = Model(INSTRUCTIONS, FLAGS, trapped={
    name: StateDifference(MASK, LEFT) for name in ("elr_el1", "spsr_el1", "esr_el1", "far_el1")})
