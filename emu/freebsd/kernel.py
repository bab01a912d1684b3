"""What FreeBSD's kernel has in common on all architectures."""

from emu.guest import Allocator, Guest, GuestRegisters, Loader, TrapFrame
from emu.hole import FindHole

PROMPTS = ("mountroot> ",)
M_WAITOK_ZERO = 0x102  # malloc(9)


def freebsd(
    load: Loader,
    place: Loader,
    hole: FindHole,
    trap_frame: TrapFrame,
    trap_entries: frozenset[str],
    registers: GuestRegisters,
    per_cpu: str,
    releases: str,
    seam_word: str = "",
) -> Guest:
    """The kernel on one architecture."""
    return Guest(
        name="FreeBSD", recognized_by="", load=load, place=place, hole=hole,
        trap_frame=trap_frame, trap_entries=trap_entries, registers=registers, per_cpu=per_cpu,
        releases=releases,
        seam="dtrace_invop_jump_addr", seam_word=seam_word,
        # It asks for its root file system, and waits in the function that reads the console.
        prompts=PROMPTS, starts=("mi_startup",), readers=("cngets", "cncheckc", "cngetc"),
        panic="vpanic", panic_ends=(b"Uptime: ", b"KDB: enter: ", b"db> "),
        allocator=Allocator("malloc", "M_TEMP", M_WAITOK_ZERO),
        members={
            "tid": (("thread", "td_tid"),), "errno": (("thread", "td_errno"),),
            "pid": (("thread", "td_proc"), ("proc", "p_pid")),
            "ppid": (("thread", "td_proc"), ("proc", "p_pptr"), ("proc", "p_pid")),
            "execname": (("thread", "td_proc"), ("proc", "p_comm")),
            "uid": (("thread", "td_ucred"), ("ucred", "cr_uid")),
            "gid": (("thread", "td_ucred"), ("ucred", "cr_rgid")),
        },
    )
