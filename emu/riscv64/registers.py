"""Registers of riscv64: general registers by psABI name, CSRs as in the privileged manual."""

import unicorn.riscv_const as uc

from emu.arch.target_description import GdbRegister, TargetDescription

NAMES = (
    "zero ra sp gp tp t0 t1 t2 s0 s1 a0 a1 a2 a3 a4 a5 a6 a7 "
    "s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 t3 t4 t5 t6"
).split()

# Timing of the ``time`` CSR.
TIMEBASE = 10_000_000  # frequency in Hz
TICK = 1_000_000_000 // TIMEBASE  # duration of a tick in ns
CLOCK_READ_COST = 200  # cost of a read in virtual ns, so that loops that poll the clock end soon

GENERAL = {name: 64 for name in [*NAMES, "pc"]}

SUPERVISOR = ("sstatus", "sie", "stvec", "scounteren", "sscratch", "sepc", "scause", "stval",
              "satp")
MACHINE = ("mideleg", "medeleg", "mcounteren")  # M-mode registers, which the guest cannot change
CSRS = (*SUPERVISOR, *MACHINE, "fcsr")

UNICORN = {name: uc.UC_RISCV_REG_X0 + i for i, name in enumerate(NAMES)}
UNICORN["pc"] = uc.UC_RISCV_REG_PC
UNICORN["priv"] = uc.UC_RISCV_REG_PRIV
UNICORN |= {f"f{i}": uc.UC_RISCV_REG_F0 + i for i in range(32)}
UNICORN |= {name: getattr(uc, f"UC_RISCV_REG_{name.upper()}") for name in CSRS}

# Registers in a snapshot, in the order in which they are restored.
STATE = ["priv", *SUPERVISOR, *NAMES, *(f"f{i}" for i in range(32)), "pc"]

# Registers of riscv64 in gdb (gdb manual, "RISC-V Features").
_TYPES = {"ra": "code_ptr", "sp": "data_ptr", "gp": "data_ptr", "tp": "data_ptr"}

DESCRIPTION = TargetDescription("riscv:rv64", (
    ("org.gnu.gdb.riscv.cpu", (
        *(GdbRegister("fp" if name == "s0" else name, name, 64, _TYPES.get(name, "int64"))
          for name in NAMES),
        GdbRegister("pc", "pc", 64, "code_ptr"))),
    ("org.gnu.gdb.riscv.csr", tuple(GdbRegister(name, name) for name in SUPERVISOR)),
))
