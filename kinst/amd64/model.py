"""Where two models of an amd64 CPU may rightly differ (SDM volume 2)."""

from kinst.verify.crosscheck.difference import Difference, MemoryDifference, Model

FLAGS = 0x8D5  # CF PF AF ZF SF OF
INSTRUCTIONS = (
    Difference(b"\x0f\x31", ("rax", "rdx"), "RDTSC: a cycle counter"),
    Difference(b"\x0f\x01\xf9", ("rax", "rdx", "rcx"), "RDTSCP: a cycle counter"),
    Difference(b"\x0f\xa2", ("rax", "rbx", "rcx", "rdx"), "CPUID: identification"),
    Difference(b"\xec", ("rax",), "IN: devices are not carried over"),
    Difference(b"\xed", ("rax",), "IN: devices are not carried over"),
    Difference(b"\x0f\x05", ("rflags",), "SYSCALL: QEMU 7.2 forgets the arithmetic flags",
               bits=FLAGS),
)
# FXSAVE's area (SDM volume 1, table 10-2): FIP and FDP lie behind 8 bytes.
LAST_X87 = (8, 16, "FXSAVE: QEMU 7.2 does not keep where the last x87 instruction was")
MODEL = Model(INSTRUCTIONS, FLAGS, memory=(
    MemoryDifference(b"\x0f\xae\0", b"\xff\xff\x38", *LAST_X87),
    MemoryDifference(b"\x40\x0f\xae\0", b"\xf0\xff\xff\x38", *LAST_X87),
))
