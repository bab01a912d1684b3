"""The numbers of ``regs[]`` and ``uregs[]`` on riscv64."""

from emu.riscv64.registers import NAMES

PLACES = dict(enumerate((*NAMES, "pc")))
NUMBERS = {f"R_{name.upper()}": n for n, name in PLACES.items()} | {"R_FP": 8}
