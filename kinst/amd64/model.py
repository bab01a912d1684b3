"""Where two models of an amd64 CPU may rightly differ (SDM volume 2)."""

from kinst.crosscheck.difference import Difference, Model

INSTRUCTIONS = (
    Difference(b"\x0f\x31", ("rax", "rdx"), "RDTSC: a cycle counter"),
    Difference(b"\x0f\x01\xf9", ("rax", "rdx", "rcx"), "RDTSCP: a cycle counter"),
    Difference(b"\x0f\xa2", ("rax", "rbx", "rcx", "rdx"), "CPUID: identification"),
    Difference(b"\xec", ("rax",), "IN: devices are not carried over"),
    Difference(b"\xed", ("rax",), "IN: devices are not carried over"),
)
FLAGS = 0x8D5  # CF PF AF ZF SF OF
MODEL = Model(INSTRUCTIONS, FLAGS)
