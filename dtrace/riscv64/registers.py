"""The numbers of ``regs[]`` and ``uregs[]`` on riscv64."""

from emu.riscv64.registers import NAMES

PLACES = dict(enumerate((*NAMES, "pc")))
NUMBERS = {f"R_{name.upper()}": n for n, name in PLACES.items()} | {"R_FP": 8}

# Where ``struct pcb`` keeps a thread's registers while another runs: (member, index).
SAVED: dict[str, tuple[str, int | None]] = {f"s{n}": ("pcb_s", n) for n in range(12)}
SAVED |= {name: (f"pcb_{name}", None) for name in ("ra", "sp", "gp", "tp")}
SAVED["pc"] = ("pcb_ra", None)
