"""The numbers of ``regs[]`` and ``uregs[]`` on amd64: i386's, then the others."""

LOW = "gs fs es ds rdi rsi rbp rsp rbx rdx rcx rax trapno err rip cs rflags rsp ss".split()
HIGH = "r15 r14 r13 r12 r11 r10 r9 r8 rdi rsi rbp rbx rdx rcx rax".split()
# Number -> our name, or the trap frame's.
PLACES = dict(enumerate((*LOW, *HIGH))) | {40: "rip", 42: "rflags", 43: "rsp"}
NUMBERS = {
    **{f"R_{name}": n for n, name in enumerate(
        "GS FS ES DS EDI ESI EBP ESP EBX EDX ECX EAX TRAPNO ERR EIP CS EFL UESP SS".split())},
    "R_PC": 14, "R_SP": 17, "R_PS": 16, "R_R0": 11, "R_R1": 8,
    **{f"R_{name.upper()}": len(LOW) + n for n, name in enumerate(HIGH)},
    "R_RIP": 40, "R_RFL": 42, "R_RSP": 43,
}

# Where ``struct pcb`` keeps a thread's registers while another runs: (member, index).
SAVED: dict[str, tuple[str, int | None]] = {name: (f"pcb_{name}", None) for name in (
    "rbx", "rbp", "rsp", "r12", "r13", "r14", "r15", "rip")}
