"""FreeBSD's kernel on arm64 as a guest."""

from emu.arm64.arch import ADDRESS, CONTIGUOUS
from emu.arm64.generic_timer import TICK
from emu.guest.guest import GuestRegisters, SystemCalls, TrapFrame
from emu.guest.hole import NO_HOLE, Hole, PageTables, find_far_hole, large_pages
from emu.guests.freebsd.arm64.loader import load, place
from emu.guests.freebsd.kernel import freebsd
from emu.guests.freebsd.tracer import tracer
from emu.host.errors import MachineError

# struct trapframe of FreeBSD's arm64 port.
TRAP_FRAME = TrapFrame(
    288,
    {"sp": (0, 8), "lr": (8, 8), "elr": (16, 8), "spsr": (24, 8), "esr": (32, 8), "far": (40, 8)}
    | {f"x{i}": (48 + 8 * i, 8) for i in range(30)},
)


def hole(
    machine: PageTables, near: int, physical: int, pages: int, directory: int
) -> Hole | None:
    """Find an unused range of addresses in a level 2 page table of the kernel.

    The memory gets the attributes of the kernel's code.
    """
    if not machine.read_register("sctlr_el1") & 1:
        return None

    def next_table(entry: int) -> int | None:
        return 0 if not entry & 1 else entry & ADDRESS if entry & 2 else None

    def entry_at(table: int, shift: int) -> int:
        index = (near & (1 << size) - 1) >> shift & 0x1FF
        return int.from_bytes(machine.read_physical(table + 8 * index, 8), "little")

    size = 64 - (machine.read_register("tcr_el1") >> 16 & 63)
    at = machine.read_register("ttbr1_el1") & ADDRESS
    if size > 39:
        at = entry_at(at, 39) & ADDRESS
    entry = entry_at(entry_at(at, 30) & ADDRESS, 21)
    if entry & 2:  # this entry refers to a page table: use the attributes of the page instead
        entry = entry_at(entry & ADDRESS, 12)
    attributes = entry & ~ADDRESS & ~CONTIGUOUS & ~3 | 1
    hole = find_far_hole(machine, at, near, pages, next_table)
    if hole is None:
        raise MachineError(NO_HOLE)
    virtual, table, first = hole
    return Hole(virtual, large_pages(table, first, physical, attributes, pages))


# Indices of ``regs[]`` and ``uregs[]`` in D.
PLACES = {n: f"x{n}" for n in range(31)} | {31: "sp", 32: "pc"}
NUMBERS = {f"R_X{n}": n for n in range(30)} | {"R_FP": 29, "R_LR": 30, "R_SP": 31, "R_PC": 32}

# Members of ``struct pcb`` with the registers of a thread that is not running: (member, index).
SAVED: dict[str, tuple[str, int | None]] = {f"x{19 + n}": ("pcb_x", n) for n in range(12)}
SAVED |= {"sp": ("pcb_sp", None), "pc": ("pcb_x", 11)}

# Registers in ``mcontext_t`` (machine/ucontext.h): (member, index).
CONTEXT = {f"x{n}": ("mc_gpregs.gp_x", n) for n in range(30)}
CONTEXT |= {"x30": ("mc_gpregs.gp_lr", 0), "sp": ("mc_gpregs.gp_sp", 0),
            "pc": ("mc_gpregs.gp_elr", 0)}

GUEST = freebsd(
    load, place, hole, TRAP_FRAME,
    frozenset({"handle_el1h_sync", "handle_el1h_irq", "handle_el1h_fiq",
                              "handle_el1h_serror"}),
    registers=GuestRegisters(NUMBERS, PLACES, SAVED),
    system_calls=SystemCalls(b"\x01\0\0\xd4", "x8", tuple(f"x{n}" for n in range(8)), "x0",
                             ("pstate", 1 << 29), "do_el0_sync"),
    # EC of ESR_EL1 (Arm ARM D24.2.40): an instruction or data abort from a lower exception level.
    page_faults=("do_el0_sync", "far", ("esr", 0x3F << 26, frozenset({0x20 << 26, 0x24 << 26}))),
    page_tables=("pm_ttbr", "ttbr0_el1"),
    per_cpu=("x18", "tpidr_el1", False),
    ticks={"arm_tmr_get_timecount": TICK},
    releases="arm64/aarch64",
    tracepoint=bytes.fromhex("1f2003d5"),  # no-op at static probes (machine/sdt_machdep.h)
    context=CONTEXT,
    tracer=tracer(trampoline=8),
    interrupts=("intr_irq_handler",),
    # CPUs execute the mp* functions at startup, before the MMU is on.
    entry_path=frozenset({"handle_el1h_sync", "do_el1h_sync", "exception_vectors", "mpentry_psci",
                          "mpentry_spintable", "mpentry_common", "mp_virtdone"}),
    entry_prefixes=("handle_el",),
)
