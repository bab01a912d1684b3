"""riscv64 as gdb knows it (gdb manual, "RISC-V Features")."""

from emu.gdb.description import Description, GdbRegister
from emu.riscv64.registers import NAMES, SUPERVISOR

_TYPES = {"ra": "code_ptr", "sp": "data_ptr", "gp": "data_ptr", "tp": "data_ptr"}

DESCRIPTION = Description("riscv:rv64", (
    ("org.gnu.gdb.riscv.cpu", (
        *(GdbRegister("fp" if name == "s0" else name, name, 64, _TYPES.get(name, "int64"))
          for name in NAMES),
        GdbRegister("pc", "pc", 64, "code_ptr"))),
    ("org.gnu.gdb.riscv.csr", tuple(GdbRegister(name, name) for name in SUPERVISOR)),
))
