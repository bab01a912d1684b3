"""General and system registers of arm64, named as in the Arm ARM (DDI 0487)."""

import unicorn.arm64_const as uc

from emu.arch.target_description import GdbRegister, TargetDescription

GENERAL = {name: 64 for name in [*(f"x{i}" for i in range(31)), "sp", "pc", "pstate"]}

UNICORN = {f"x{i}": uc.UC_ARM64_REG_X0 + i for i in range(29)}
UNICORN |= {
    "x29": uc.UC_ARM64_REG_X29, "x30": uc.UC_ARM64_REG_X30, "sp": uc.UC_ARM64_REG_SP,
    "pc": uc.UC_ARM64_REG_PC, "pstate": uc.UC_ARM64_REG_PSTATE, "lr": uc.UC_ARM64_REG_X30,
}

VECTORS = {f"q{i}": uc.UC_ARM64_REG_Q0 + i for i in range(32)}

# (op0, op1, CRn, CRm, op2): Arm ARM, "AArch64 System register encoding".
SYSTEM = {
    "sctlr_el1": (3, 0, 1, 0, 0), "actlr_el1": (3, 0, 1, 0, 1), "cpacr_el1": (3, 0, 1, 0, 2),
    "ttbr0_el1": (3, 0, 2, 0, 0), "ttbr1_el1": (3, 0, 2, 0, 1), "tcr_el1": (3, 0, 2, 0, 2),
    "spsr_el1": (3, 0, 4, 0, 0), "elr_el1": (3, 0, 4, 0, 1), "sp_el0": (3, 0, 4, 1, 0),
    "esr_el1": (3, 0, 5, 2, 0), "far_el1": (3, 0, 6, 0, 0), "par_el1": (3, 0, 7, 4, 0),
    "mair_el1": (3, 0, 10, 2, 0), "amair_el1": (3, 0, 10, 3, 0), "vbar_el1": (3, 0, 12, 0, 0),
    "contextidr_el1": (3, 0, 13, 0, 1), "tpidr_el1": (3, 0, 13, 0, 4),
    "cntkctl_el1": (3, 0, 14, 1, 0), "csselr_el1": (3, 2, 0, 0, 0),
    "tpidr_el0": (3, 3, 13, 0, 2), "tpidrro_el0": (3, 3, 13, 0, 3),
    "mdscr_el1": (2, 0, 0, 2, 2),
    "scr_el3": (3, 6, 1, 1, 0), "hcr_el2": (3, 4, 1, 1, 0), "sp_el1": (3, 4, 4, 1, 0),
}
# Performance monitor and debug registers, which snapshots contain.  They are not transferred to
# QEMU, because writing these registers has side effects there.
MONITOR = {
    "oslsr_el1": (2, 0, 1, 1, 4),
    "pmcr_el0": (3, 3, 9, 12, 0), "pmcntenset_el0": (3, 3, 9, 12, 1),
    "pmselr_el0": (3, 3, 9, 12, 5), "pmovsset_el0": (3, 3, 9, 14, 3),
    "pmuserenr_el0": (3, 3, 9, 14, 0), "pmintenset_el1": (3, 0, 9, 14, 1),
    "pmccfiltr_el0": (3, 3, 14, 15, 7),
    **{f"dbg{kind}{n}_el1": (2, 0, 0, n, op2) for kind, count, op2 in
       (("bvr", 6, 4), ("wvr", 4, 6), ("bcr", 6, 5), ("wcr", 4, 7)) for n in range(count)},
}
SYSTEM |= MONITOR
# System registers that snapshots contain and that are transferred to QEMU.  The list excludes the
# registers of EL2 and EL3, and SP_EL1, which is saved separately while the CPU is at EL0.
CARRIED = [name for name in SYSTEM
           if not name.endswith(("_el2", "_el3")) and name not in MONITOR and name != "sp_el1"]


def key(op0: int, op1: int, crn: int, crm: int, op2: int) -> int:
    """Return the number that encodes a system register in MRS instructions."""
    return op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2

# Registers of arm64 in gdb (gdb manual, "AArch64 Features").
DESCRIPTION = TargetDescription("aarch64", (
    ("org.gnu.gdb.aarch64.core", (
        *(GdbRegister(f"x{i}", f"x{i}") for i in range(31)),
        GdbRegister("sp", "sp", 64, "data_ptr"), GdbRegister("pc", "pc", 64, "code_ptr"),
        GdbRegister("cpsr", "pstate", 32, "int"))),
    ("org.gnu.gdb.aarch64.fpu", (
        *(GdbRegister(f"v{i}", f"q{i}", 128, "uint128") for i in range(32)),
        GdbRegister("fpsr", None, 32, "int"), GdbRegister("fpcr", None, 32, "int"))),
    ("org.kinst.arm64.system", tuple(GdbRegister(name, name) for name in (
        "esr_el1", "elr_el1", "spsr_el1", "far_el1", "vbar_el1", "sctlr_el1", "ttbr0_el1",
        "ttbr1_el1", "tpidr_el1"))),
))
