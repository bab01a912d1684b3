"""The teaching kernel on amd64 with the vectors of illumos (``images/teaching/amd64-illumos``)."""

from emu.guest.guest import Guest, TrapFrame
from emu.guests.teaching.guest import teaching

# struct regs of illumos's amd64 port (sys/privregs.h), without the prefix r_; the flags are named
# as in the SDM.
REGS = TrapFrame(240, {name: (8 * i, 8) for i, name in enumerate(
    "savfp savpc rdi rsi rdx rcx r8 r9 rax rbx rbp r10 r11 r12 r13 r14 r15 fsbase gsbase ds es fs "
    "gs trapno err rip cs rflags rsp ss".split())})
# Functions that handle a breakpoint exception.
WAY = frozenset(
    "tr_brktrap tr_invoptrap tr_iret_kernel brktrap invoptrap dtrace_invop invop_push invop_leave "
    "invop_nop invop_ret invop_user invop_unexpected".split())


def illumos(freebsd: Guest) -> Guest:
    """Derive the guest for the teaching kernel's illumos variant from the FreeBSD guest."""
    kernel = teaching(freebsd)
    exclusions = kernel.traps.exclusions
    return kernel._replace(
        name="teaching kernel with illumos's vectors", recognized_by="tr_brktrap",
        traps=kernel.traps._replace(
            trap_frame=REGS, trap_entries=frozenset({"invop_kernel"}),
            seam="dtrace_invop_handler", seam_word="", trap="illumos_trap",
            trap_stack="dbg_stack_top",
            exclusions=exclusions._replace(names=exclusions.names | WAY)))
