"""Registers of riscv64: the ABI names of the psABI, CSRs as the privileged manual spells them."""

import unicorn.riscv_const as uc

NAMES = (
    "zero ra sp gp tp t0 t1 t2 s0 s1 a0 a1 a2 a3 a4 a5 a6 a7 "
    "s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 t3 t4 t5 t6"
).split()

GENERAL = {name: 64 for name in [*NAMES, "pc"]}

SUPERVISOR = ("sstatus", "sie", "stvec", "scounteren", "sscratch", "sepc", "scause", "stval",
              "satp")
MACHINE = ("mideleg", "medeleg", "mcounteren")  # M-mode's: not the guest's to change
CSRS = (*SUPERVISOR, *MACHINE, "fcsr")

UNICORN = {name: uc.UC_RISCV_REG_X0 + i for i, name in enumerate(NAMES)}
UNICORN["pc"] = uc.UC_RISCV_REG_PC
UNICORN["priv"] = uc.UC_RISCV_REG_PRIV
UNICORN |= {f"f{i}": uc.UC_RISCV_REG_F0 + i for i in range(32)}
UNICORN |= {name: getattr(uc, f"UC_RISCV_REG_{name.upper()}") for name in CSRS}

# What a snapshot holds, in the order it is restored.
STATE = ["priv", *SUPERVISOR, *NAMES, *(f"f{i}" for i in range(32)), "pc"]
