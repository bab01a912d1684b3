"""FreeBSD's kernel on riscv64 as a guest."""

from emu.guest.guest import GuestRegisters, SystemCalls, TrapFrame
from emu.guest.hole import LARGE, NO_HOLE, Hole, PageTables, find_far_hole
from emu.guests.freebsd.kernel import freebsd
from emu.guests.freebsd.riscv64.loader import load, place
from emu.guests.freebsd.tracer import tracer
from emu.host.errors import MachineError
from emu.riscv64.arch import LEVELS, SATP_PPN
from emu.riscv64.registers import NAMES, TICK

# struct trapframe of FreeBSD's riscv port, 280 bytes in a slot of 288.
TRAP_FRAME = TrapFrame(
    280,
    {"ra": (0, 8), "sp": (8, 8), "gp": (16, 8), "tp": (24, 8)}
    | {f"t{i}": (32 + 8 * i, 8) for i in range(7)}
    | {f"s{i}": (88 + 8 * i, 8) for i in range(12)}
    | {f"a{i}": (184 + 8 * i, 8) for i in range(8)}
    | {"sepc": (248, 8), "sstatus": (256, 8), "stval": (264, 8), "scause": (272, 8)},
)


def hole(
    machine: PageTables, near: int, physical: int, pages: int, directory: int
) -> Hole | None:
    """Find an unused range of addresses in a level 1 page table that all address spaces share."""
    satp = machine.read_register("satp")
    levels = LEVELS.get(satp >> 60)
    if levels is None:
        return None

    def next_table(entry: int) -> int | None:
        return 0 if not entry & 1 else None if entry & 0xE else (entry >> 10 & SATP_PPN) << 12

    at = (satp & SATP_PPN) << 12
    for level in range(levels - 1, 2, -1):
        index = near >> 12 + 9 * level & 0x1FF
        at = next_table(int.from_bytes(machine.read_physical(at + 8 * index, 8), "little")) or 0
    hole = find_far_hole(machine, at, near, pages, next_table)
    if hole is None:
        raise MachineError(NO_HOLE)
    virtual, table, first = hole
    return Hole(virtual, tuple(
        (table + 8 * (first + i), physical + i * LARGE >> 12 << 10 | 0xEF) for i in range(pages)
    ))


# Indices of ``regs[]`` and ``uregs[]`` in D.
PLACES = dict(enumerate((*NAMES, "pc")))
NUMBERS = {f"R_{name.upper()}": n for n, name in PLACES.items()} | {"R_FP": 8}

# Members of ``struct pcb`` with the registers of a thread that is not running: (member, index).
SAVED: dict[str, tuple[str, int | None]] = {f"s{n}": ("pcb_s", n) for n in range(12)}
SAVED |= {name: (f"pcb_{name}", None) for name in ("ra", "sp", "gp", "tp")}
SAVED["pc"] = ("pcb_ra", None)

# Registers in ``mcontext_t`` (machine/ucontext.h): (member, index).
CONTEXT = {name: (f"mc_gpregs.gp_{name}", 0) for name in ("ra", "sp", "gp", "tp")}
CONTEXT |= {f"{kind}{n}": (f"mc_gpregs.gp_{kind}", n)
            for kind, count in (("t", 7), ("s", 12), ("a", 8)) for n in range(count)}
CONTEXT["pc"] = "mc_gpregs.gp_sepc", 0

GUEST = freebsd(
    load, place, hole, TRAP_FRAME,
    frozenset({"cpu_exception_handler_supervisor", "cpu_exception_handler"}),
    registers=GuestRegisters(NUMBERS, PLACES, SAVED),
    system_calls=SystemCalls(
        b"\x73\0\0\0", "t0", tuple(f"a{n}" for n in range(8)), "a0", ("t0", (1 << 64) - 1),
        "do_trap_user"),
    # scause (privileged manual, 12.1.8): page faults of instruction fetches, loads and stores.
    page_faults=("do_trap_user", "stval", ("scause", (1 << 64) - 1, frozenset({12, 13, 15}))),
    page_tables=("pm_satp", "satp"),
    per_cpu=("tp", "sscratch", True),
    ticks={"get_timecount": TICK},
    releases="riscv/riscv64",
    tracepoint=bytes.fromhex("13000000"),  # no-op at static probes (machine/sdt_machdep.h)
    context=CONTEXT,
    tracer=tracer(trampoline=8, addresses=False),  # dtrace_getarg() is not implemented
    interrupts=("intr_irq_handler",),
    # CPUs execute mpentry at startup, before the MMU is on.
    entry_path=frozenset({"mpentry", "cpu_exception_handler", "cpu_exception_handler_supervisor",
                          "cpu_exception_handler_user", "do_trap_supervisor", "do_trap_user"}),
)
