"""The numbers of ``regs[]`` and ``uregs[]`` on arm64."""

PLACES = {n: f"x{n}" for n in range(31)} | {31: "sp", 32: "pc"}
NUMBERS = {f"R_X{n}": n for n in range(30)} | {"R_FP": 29, "R_LR": 30, "R_SP": 31, "R_PC": 32}

# Where ``struct pcb`` keeps a thread's registers while another runs: (member, index).
SAVED: dict[str, tuple[str, int | None]] = {f"x{19 + n}": ("pcb_x", n) for n in range(12)}
SAVED |= {"sp": ("pcb_sp", None), "pc": ("pcb_x", 11)}
