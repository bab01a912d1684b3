"""FreeBSD's kernel on amd64 as a guest."""

from emu.amd64.arch import FRAME, LARGE, PRESENT
from emu.guest.guest import GuestRegisters, SystemCalls, TrapFrame
from emu.guest.hole import NO_HOLE, Hole, PageTables, find_hole, large_pages
from emu.guests.freebsd.amd64.loader import load, place
from emu.guests.freebsd.kernel import freebsd
from emu.guests.freebsd.tracer import tracer
from emu.host.errors import MachineError

# struct trapframe of FreeBSD's amd64 port.
TRAP_FRAME = TrapFrame(
    192,
    {name: (8 * i, 8) for i, name in enumerate(
        "rdi rsi rdx rcx r8 r9 rax rbx rbp r10 r11 r12 r13 r14 r15".split())}
    | {"trapno": (120, 4), "fs": (124, 2), "gs": (126, 2), "addr": (128, 8), "flags": (136, 4),
       "es": (140, 2), "ds": (142, 2), "err": (144, 8), "rip": (152, 8), "cs": (160, 8),
       "rflags": (168, 8), "rsp": (176, 8), "ss": (184, 8)},
)


def hole(
    machine: PageTables, near: int, physical: int, pages: int, directory: int
) -> Hole:
    """Find an unused range of addresses within reach of 32-bit displacements from the kernel.

    This is in the page directory of the kernel's GiB, which all address spaces share, or in the
    following GiB.
    """

    def next_table(entry: int) -> int | None:
        return 0 if not entry & PRESENT else None if entry & LARGE else entry & FRAME

    at = machine.read_register("cr3") & FRAME
    tables = [at]
    for shift in (39, 30):
        entry = machine.read_physical(tables[-1] + 8 * (near >> shift & 0x1FF), 8)
        tables.append(int.from_bytes(entry, "little") & FRAME)
    attributes = PRESENT | LARGE | 0x62  # large page that is also writable, accessed and dirty
    found = find_hole(machine, tables[2], pages, next_table)
    if found is not None:
        return Hole((near & -1 << 30) + (found << 21),
                    large_pages(tables[2], found, physical, attributes, pages))
    last = tables[1] + 8 * 511
    if machine.read_physical(last, 1)[0] & PRESENT or pages > 512:
        raise MachineError(NO_HOLE)
    return Hole(-1 << 30 & (1 << 64) - 1,
                (*large_pages(directory, 0, physical, attributes, pages),
                 (last, directory | 0x23)))


# Indices of ``regs[]`` and ``uregs[]`` in D.
LOW = "gs fs es ds rdi rsi rbp rsp rbx rdx rcx rax trapno err rip cs rflags rsp ss".split()
HIGH = "r15 r14 r13 r12 r11 r10 r9 r8 rdi rsi rbp rbx rdx rcx rax".split()
# Index -> name of a register in the emulator, or of a field of the trap frame.
PLACES = dict(enumerate((*LOW, *HIGH))) | {40: "rip", 42: "rflags", 43: "rsp"}
NUMBERS = {
    **{f"R_{name}": n for n, name in enumerate(
        "GS FS ES DS EDI ESI EBP ESP EBX EDX ECX EAX TRAPNO ERR EIP CS EFL UESP SS".split())},
    "R_PC": 14, "R_SP": 17, "R_PS": 16, "R_R0": 11, "R_R1": 8,
    **{f"R_{name.upper()}": len(LOW) + n for n, name in enumerate(HIGH)},
    "R_RIP": 40, "R_RFL": 42, "R_RSP": 43,
}

# Members of ``struct pcb`` with the registers of a thread that is not running: (member, index).
SAVED: dict[str, tuple[str, int | None]] = {name: (f"pcb_{name}", None) for name in (
    "rbx", "rbp", "rsp", "r12", "r13", "r14", "r15", "rip")}

# Registers in ``mcontext_t`` (machine/ucontext.h).
CONTEXT = {name: (f"mc_{name}", 0) for name in (
    "rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax", "rbx", "rbp", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip", "rsp")}

GUEST = freebsd(
    load, place, hole, TRAP_FRAME,
    frozenset({"calltrap", "nmi_calltrap"}),
    registers=GuestRegisters(NUMBERS, PLACES, SAVED),
    system_calls=SystemCalls(b"\x0f\x05", "rax", ("rdi", "rsi", "rdx", "r10", "r8", "r9"), "rax",
                             ("rflags", 1), "amd64_syscall", ("ia32_syscall",)),
    # A program made the access if PGEX_U is set in the error code (sys/amd64/include/pmap.h).
    page_faults=("trap", "addr", ("err", 4, frozenset({4}))),
    page_tables=("pm_cr3", "cr3"),
    per_cpu=("gs_base", "kernel_gs_base", False),
    ticks={"rdtsc": 1},
    releases="amd64/amd64",
    tracepoint=bytes.fromhex("660f1f0400"),  # no-op at static probes (machine/sdt_machdep.h)
    context=CONTEXT,
    tracer=tracer(trampoline=32, frame_on_stack=True, copies_at_once=True),  # REP MOVSB
    interrupts=("intr_execute_handlers", "lapic_handle_timer"),
    entry_path=frozenset({"Xbpt", "alltraps", "calltrap", "trap"}),
    seam_word="dtrace_invop_calltrap_addr",
)
