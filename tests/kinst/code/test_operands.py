"""Tests of the operands of instructions, and of what comparisons write."""

import keystone
import pytest

from kinst.code.dataflow import EFFECTS
from kinst.code.operands import OPERANDS, Operand

ASSEMBLERS = {"amd64": (keystone.KS_ARCH_X86, keystone.KS_MODE_64), "arm64": (
    keystone.KS_ARCH_ARM64, keystone.KS_MODE_LITTLE_ENDIAN)}
AT = 0x1000


def assembled(arch, text):
    return bytes(keystone.Ks(*ASSEMBLERS[arch]).asm(text, AT)[0])


def register(name, size=8):
    return Operand(size, name)


def number(value, size=0):
    return Operand(size, constant=value)


@pytest.mark.parametrize("arch, text, wanted, sets, reads", [
    ("amd64", "cmp dword ptr [rbp - 0x2c], 2",
     [Operand(4, base="rbp", offset=-0x2c), number(2, 4)], True, False),
    ("amd64", "test r14, r14", [register("r14"), register("r14")], True, False),
    ("amd64", "cmp byte ptr [rip + 0x10], 3", [Operand(1, offset=AT + 0x17), number(3, 1)],
     True, False),
    ("amd64", "cmp rax, qword ptr [rcx + rdx*8 + 4]",
     [register("rax"), Operand(8, base="rcx", index="rdx", scale=8, offset=4)], True, False),
    ("amd64", "cmp al, 5", [register("rax", 1), number(5, 1)], True, False),
    ("amd64", "test ah, 0x10", [Operand(1, "rax", shift=8), number(0x10, 1)], True, False),
    ("amd64", "jne 0x1010", [], False, True),
    ("amd64", "lock cmpxchg qword ptr [rbx + 0x18], r14",
     [Operand(8, base="rbx", offset=0x18), register("rax")], True, False),
    ("amd64", "xadd dword ptr [rbx], ecx", [Operand(4, base="rbx"), register("rcx", 4)], True,
     False),
    ("amd64", "lar eax, ecx", [register("rax", 4), register("rcx", 4)], True, False),
    ("amd64", "mov rax, qword ptr gs:[0]", [register("rax"), Operand(8, base="gs_base")], False,
     False),
    ("arm64", "cmp w8, #2", [register("x8", 4), number(2)], True, False),
    ("arm64", "cmp x8, x9", [register("x8"), register("x9")], True, False),
    ("arm64", "cbz x3, #0x20", [register("x3")], False, False),
    ("arm64", "tbnz w3, #4, #0x20", [register("x3", 4), number(4)], False, False),
    ("arm64", "b.eq #0x20", [], False, True),
    ("arm64", "ldrb w1, [x2, #4]", [register("x1", 4), Operand(1, base="x2", offset=4)], False,
     False),
    ("arm64", "ldr x1, [x2, x3, lsl #3]",
     [register("x1"), Operand(8, base="x2", index="x3", scale=8)], False, False),
    ("arm64", "ldrsw x1, [x2]", [register("x1"), Operand(4, base="x2")], False, False),
    ("arm64", "cmp x1, xzr", [register("x1"), number(0, 8)], True, False),
])
def test_operands_are_those_of_the_assembly_language(arch, text, wanted, sets, reads):
    found = OPERANDS[arch](assembled(arch, text), AT)
    assert list(found.operands) == wanted
    assert (found.sets_flags, found.reads_flags) == (sets, reads)


@pytest.mark.parametrize("code, wanted", [
    ("63940502", [register("a1"), number(0, 8)]),  # bnez a1
    ("6384c502", [register("a1"), register("a2")]),  # beq a1, a2 (approximately)
    ("11c5", [register("a0"), number(0, 8)]),  # c.beqz a0
    ("03b50500", [register("a0"), Operand(8, base="a1")]),  # ld a0, 0(a1)
    ("03454500", [register("a0"), Operand(1, base="a0", offset=4)]),  # lbu a0, 4(a0)
    ("0c45", [register("a1"), Operand(4, base="a0", offset=8)]),  # c.lw a1, 8(a0)
    ("0265", [register("a0"), Operand(8, base="sp")]),  # c.ldsp a0, 0(sp)
])
def test_operands_of_riscv64(code, wanted):
    assert list(OPERANDS["riscv64"](bytes.fromhex(code), AT).operands) == wanted


@pytest.mark.parametrize("arch, text, wanted", [
    ("amd64", "mov eax, 0x11", True), ("amd64", "xor eax, eax", True),
    ("amd64", "xor eax, ecx", False), ("amd64", "add eax, 1", False),
    ("amd64", "mov eax, ecx", False), ("amd64", "mov dword ptr [rax], 1", False),
    ("arm64", "mov w0, #17", True), ("arm64", "mov w0, wzr", True), ("arm64", "mov w0, w1", False),
    ("arm64", "add w0, w0, #1", False), ("arm64", "movk w0, #1, lsl #16", False)])
def test_an_instruction_that_loads_a_constant_is_recognized(arch, text, wanted):
    assert OPERANDS[arch](assembled(arch, text), AT).loads_constant is wanted


@pytest.mark.parametrize("code, wanted", [
    ("13051001", True), ("4545", True), ("13051500", False), ("2e85", False)])
def test_an_instruction_that_loads_a_constant_is_recognized_on_riscv64(code, wanted):
    """The instructions are li a0, 17; c.li a0, 17; addi a0, a0, 1; c.mv a0, a1."""
    assert OPERANDS["riscv64"](bytes.fromhex(code), AT).loads_constant is wanted


@pytest.mark.parametrize("arch", ["amd64", "arm64", "riscv64"])
def test_invalid_code_has_no_operands(arch):
    assert OPERANDS[arch](b"", AT).operands == ()


@pytest.mark.parametrize("text", [
    "cmp w0, #6", "cmp w0, w1", "cmn x0, #1", "tst w0, #4", "cmp x0, x1, lsl #2"])
def test_a_comparison_writes_no_register_on_arm64(text):
    assert not EFFECTS["arm64"](assembled("arm64", text)).writes


@pytest.mark.parametrize(("arch", "code", "ands"), [
    ("amd64", "83e008", True), ("amd64", "2408", True), ("amd64", "83c808", False),
    ("arm64", "08011d12", True), ("arm64", "08011d72", True), ("arm64", "08011d32", False),
    ("riscv64", "93f58500", True), ("riscv64", "a189", True), ("riscv64", "93e58500", False)])
def test_the_bitwise_and_with_a_constant_is_recognized(arch, code, ands):
    found = OPERANDS[arch](bytes.fromhex(code), 0x1000)
    assert found.ands == ands and found.operands[-1].constant is not None
