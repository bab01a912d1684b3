"""Known differences between two models of an amd64 CPU (SDM volume 2)."""

from kinst.verify.crosscheck.difference import Difference, MemoryDifference, Model

FLAGS = 0x8D5  # CF PF AF ZF SF OF
INSTRUCTIONS = (
    Difference(b"\x0f\x31", ("rax", "rdx"), "RDTSC: a cycle counter"),
    Difference(b"\x0f\x01\xf9", ("rax", "rdx", "rcx"), "RDTSCP: a cycle counter"),
    Difference(b"\x0f\xa2", ("rax", "rbx", "rcx", "rdx"), "CPUID: identification"),
    Difference(b"\xec", ("rax",), "IN: device state is not transferred"),
    Difference(b"\xed", ("rax",), "IN: device state is not transferred"),
    Difference(b"\x0f\x05", ("rflags",), "SYSCALL: QEMU 7.2 loses the arithmetic flags",
               bits=FLAGS),
)
# In the FXSAVE area, FIP and FDP start at offset 8 (SDM volume 1, table 10-2).
LAST_X87 = (8, 16, "FXSAVE: QEMU 7.2 does not record the address of the last x87 instruction")
MODEL = Model(INSTRUCTIONS, FLAGS, memory=(
    MemoryDifference(b"\x0f\xae\0", b"\xff\xff\x38", *LAST_X87),
    MemoryDifference(b"\x40\x0f\xae\0", b"\xf0\xff\xff\x38", *LAST_X87),
))
