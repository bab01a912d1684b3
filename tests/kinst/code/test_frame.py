"""Tests of stack frames found by decoding prologues and epilogues."""

import pytest

from emu.arch.architectures import ARCHITECTURES
from emu.elf.symbols import Symbol
from kinst.code.frame import CodeFrame, FrameFollower
from kinst.relocation.trap import TRAPS

BASE = 0x1000
# A function that saves the frame pointer and any link register, lowers the stack pointer, and
# restores all of these registers; one instruction per string.
CODE = {
    "amd64": ["55", "4889e5", "4883ec20", "90", "4883c420", "5d", "c3"],
    "arm64": ["fd7bbea9", "fd030091", "ff8300d1", "1f2003d5", "ff830091", "fd7bc2a8", "c0035fd6"],
    "riscv64": ["3971", "06fc", "22f8", "8000", "0100", "e270", "4274", "2161", "8280"],
}


def follower(arch, pieces):
    code = b"".join(map(bytes.fromhex, pieces))

    def read(address, size):
        return code[address - BASE : address - BASE + size]
    made = FrameFollower(ARCHITECTURES[arch], TRAPS[arch], read, lambda _target: True)
    return made, Symbol("f", BASE, len(code), 2)


def places(pieces):
    address, addresses = BASE, []
    for piece in pieces:
        addresses.append(address)
        address += len(piece) // 2
    return addresses


def test_at_a_return_the_return_address_is_found():
    for arch, link in (("arm64", "x30"), ("riscv64", "ra")):
        walk, function = follower(arch, CODE[arch])
        found = walk.in_epilogue(function, places(CODE[arch])[-1])
        assert found == CodeFrame("sp", 0, (), link)
    walk, function = follower("amd64", CODE["amd64"])
    assert walk.in_epilogue(function, places(CODE["amd64"])[-1]) == CodeFrame(
        "rsp", 8, (("rip", -8),))


@pytest.mark.parametrize("arch, index, wanted", [
    ("amd64", 5, CodeFrame("rsp", 16, (("rbp", -16), ("rip", -8)))),
    ("amd64", 4, CodeFrame("rsp", 48, (("rbp", -16), ("rip", -8)))),
    ("arm64", 5, CodeFrame("sp", 32, (("x29", -32), ("pc", -24)))),
    ("arm64", 4, CodeFrame("sp", 64, (("x29", -32), ("pc", -24)))),
    ("riscv64", 5, CodeFrame("sp", 64, (("s0", -16), ("pc", -8)))),
    ("riscv64", 7, CodeFrame("sp", 64, (), "ra")),
])
def test_in_an_epilogue_saved_registers_are_read_from_the_stack(arch, index, wanted):
    walk, function = follower(arch, CODE[arch])
    assert walk.in_epilogue(function, places(CODE[arch])[index]) == wanted


@pytest.mark.parametrize("arch", CODE)
def test_a_prologue_is_not_mistaken_for_an_epilogue(arch):
    walk, function = follower(arch, CODE[arch])
    assert walk.in_epilogue(function, BASE) is None


@pytest.mark.parametrize("arch, index, wanted", [
    ("amd64", 0, CodeFrame("rsp", 8, (("rip", -8),))),
    ("amd64", 1, CodeFrame("rsp", 16, (("rip", -8), ("rbp", -16)))),
    ("amd64", 2, CodeFrame("rsp", 16, (("rip", -8), ("rbp", -16)))),
    ("arm64", 1, CodeFrame("sp", 32, (("x29", -32),), "x30")),
    ("riscv64", 2, CodeFrame("sp", 64, (), "ra")),
    ("riscv64", 3, CodeFrame("sp", 64, (("s0", -16),), "ra")),
    # after the frame register was changed: it was saved before
    ("arm64", 2, CodeFrame("sp", 32, (("x29", -32),), "x30")),
    ("arm64", 3, CodeFrame("sp", 64, (("x29", -32),), "x30")),
    ("riscv64", 4, CodeFrame("sp", 64, (("s0", -16),), "ra")),
])
def test_in_a_prologue_the_stack_pointer_leads_to_the_caller(arch, index, wanted):
    walk, function = follower(arch, CODE[arch])
    assert walk.in_prologue(function, places(CODE[arch])[index]) == wanted


# Functions that check an argument before they make a frame: a branch to a return; then the prologue
CHECKS_FIRST = {
    "amd64": (["4885ff", "7420", "55", "4883ec20", "90"],  # test rdi; je; push rbp; sub rsp; nop
              CodeFrame("rsp", 48, (("rip", -8), ("rbp", -16)))),
    # cbz x0; paciasp; sub sp, sp, #0x70; stp x29, x30, [sp, #0x10]; nop
    "arm64": (["400100b4", "3f2303d5", "ffc301d1", "fd7b01a9", "1f2003d5"],
              CodeFrame("sp", 0x70, (("x29", -0x60), ("pc", -0x58)))),
    "riscv64": (["0dcd", "3971", "22f8", "0100"],  # beqz a0; addi sp, -64; sd s0, 48(sp); nop
                CodeFrame("sp", 64, (("s0", -16),), "ra")),
}


@pytest.mark.parametrize("arch", CHECKS_FIRST)
def test_a_prologue_is_followed_past_a_branch(arch):
    pieces, wanted = CHECKS_FIRST[arch]
    walk, function = follower(arch, pieces)
    assert walk.in_prologue(function, places(pieces)[-1]) == wanted


@pytest.mark.parametrize(("arch", "pieces"), [
    ("amd64", ["4889e5", "4883ec20", "90"]),  # mov rbp, which is not saved; sub rsp; nop
    ("arm64", ["ff8300d1", "fd030091", "1f2003d5"]),  # sub sp; mov x29, sp, which is not saved; nop
    ("arm64", ["fd7bbea9", "00000094", "1f2003d5"]),  # stp; bl; nop
    ("riscv64", ["3971", "8000", "0100"]),  # addi sp; addi s0, which is not saved; nop
])
def test_where_the_caller_registers_are_lost_a_prologue_is_not_followed(arch, pieces):
    walk, function = follower(arch, pieces)
    assert walk.in_prologue(function, places(pieces)[2]) is None


# The code sets up a frame, then jumps to BASE + 0x7000, outside the function.
JUMPS_OUT = {
    "amd64": (["55", "4889e5", "90", "e9f66f0000"], 2),  # push rbp; mov rbp, rsp; nop; jmp
    "arm64": (["fd7bbea9", "fd030091", "1f2003d5", "fd1b0014"], 2),  # stp; mov x29, sp; nop; b
    "riscv64": (["3971", "06fc", "0100", "6f70c07f"], 2),  # addi sp; sd ra; nop; j
}


@pytest.mark.parametrize("arch", JUMPS_OUT)
def test_a_jump_to_a_cold_part_is_not_a_return(arch):
    pieces, number = JUMPS_OUT[arch]
    walk, function = follower(arch, pieces)
    last = places(pieces)[-1]
    known = TRAPS[arch].instructions
    target = known.jump_target(None, known.classify(bytes.fromhex(pieces[-1]), last)[1])
    assert target is not None and not BASE <= target < BASE + function.size
    for cold in (False, True):
        code = FrameFollower(ARCHITECTURES[arch], TRAPS[arch], walk._read,
                             lambda _target, cold=cold: not cold)
        frame = code.in_epilogue(function, places(pieces)[number])
        assert (frame is None) == cold


# paciasp; sub sp, sp, #0x90; stp x29, x30, [sp, #0x30]; stp x28, x27, [sp, #0x40]; nop;
# ldp x29, x30, [sp, #0x30]; add sp, sp, #0x90; autiasp; ret
SIGNED = ["3f2303d5", "ff4302d1", "fd7b03a9", "fc6f04a9", "1f2003d5", "fd7b43a9", "ff430291",
          "bf2303d5", "c0035fd6"]


@pytest.mark.parametrize(("index", "offset", "saved"), [
    (0, 0, ()), (1, 0, ()), (2, 0x90, ()), (3, 0x90, (("x29", -0x60),)),
    (4, 0x90, (("x29", -0x60), ("x28", -0x50), ("x27", -0x48)))])
def test_a_prologue_that_signs_the_return_address_is_followed(index, offset, saved):
    walk, function = follower("arm64", SIGNED)
    assert walk.in_prologue(function, places(SIGNED)[index]) == CodeFrame("sp", offset, saved,
                                                                          "x30")


@pytest.mark.parametrize(("index", "wanted"), [
    (6, CodeFrame("sp", 0x90, (), "x30")), (7, CodeFrame("sp", 0, (), "x30")),
    (8, CodeFrame("sp", 0, (), "x30")),
    (5, CodeFrame("sp", 0x90, (("x29", -0x60), ("pc", -0x58)))),
])
def test_an_epilogue_that_checks_the_return_address_is_followed(index, wanted):
    walk, function = follower("arm64", SIGNED)
    assert walk.in_epilogue(function, places(SIGNED)[index]) == wanted


def test_a_far_tail_call_is_followed_from_both_of_its_instructions():
    # addi sp, -64; sd ra; ld ra; addi sp, 64; auipc t1, 7; jr t1
    pieces = ["3971", "06fc", "e270", "2161", "17730000", "67000300"]
    walk, function = follower("riscv64", pieces)
    for index in (4, 5):
        assert walk.in_epilogue(function, places(pieces)[index]) == CodeFrame("sp", 0, (), "ra")
    alone = ["3971", "0100", "67000300"]  # the target of a jump through a register is unknown
    walk, function = follower("riscv64", alone)
    assert walk.in_epilogue(function, places(alone)[2]) is None


# Functions without a frame record; the last instruction but one is in the body, after a jump.
BODIES = {
    # push rbp; push rbx; mov rbp, rdi; sub rsp, 8; je; nop; nop
    "amd64": ["55", "53", "4889fd", "4883ec08", "7401", "90", "90"],
    # stp x30, x19, [sp, -32]!; str x29, [sp, 16]; mov x29, x0; cbz x0; nop; nop
    "arm64": ["fe4fbea9", "fd0b00f9", "fd0300aa", "400000b4", "1f2003d5", "1f2003d5"],
    # addi sp, -32; sd ra, 24(sp); sd s0, 16(sp); mv s0, a0; beqz a0; nop; nop
    "riscv64": ["0111", "06ec", "22e8", "2a84", "11c1", "0100", "0100"],
}


@pytest.mark.parametrize("is_return", [False, True])
@pytest.mark.parametrize("arch, wanted", [
    ("amd64", CodeFrame("rsp", 32, (("rip", -8), ("rbp", -16), ("rbx", -24)))),
    ("arm64", CodeFrame("sp", 32, (("x19", -24), ("x29", -16), ("pc", -32)))),
    ("riscv64", CodeFrame("sp", 32, (("s0", -16), ("pc", -8)))),
])
def test_in_a_body_the_frame_is_the_one_that_the_prologue_made(arch, wanted, is_return):
    walk, function = follower(arch, BODIES[arch])
    for place in places(BODIES[arch])[-2:]:
        assert walk.in_body(function, place, is_return) == wanted


# Functions that branch before their prologue: test or cbz, then the prologue, and a nop.
WRAPPED = {
    "amd64": ["7401", "90", "53", "90"], "arm64": ["400000b4", "fd7bbfa9", "1f2003d5"],
    "riscv64": ["11c1", "4111", "06e4", "0100"],
}


@pytest.mark.parametrize("arch", WRAPPED)
def test_a_prologue_after_a_branch_is_not_guessed(arch):
    walk, function = follower(arch, WRAPPED[arch])
    assert walk.in_body(function, places(WRAPPED[arch])[-1], False) is None


@pytest.mark.parametrize("arch, pieces", [
    ("amd64", ["53", "7400", "4829fc", "90"]),  # push rbx; je; sub rsp, rdi; nop
    ("arm64", ["f30f1ff8", "400000b4", "ff6320cb", "1f2003d5"])])
def test_a_stack_pointer_that_changes_by_a_register_is_not_guessed(arch, pieces):
    walk, function = follower(arch, pieces)
    assert walk.in_body(function, places(pieces)[-1], False) is None


@pytest.mark.parametrize("pieces", [
    ["6658", "c3"], ["0fa1", "c3"], ["678d6100", "c3"],  # pop ax; pop fs; lea rsp, [ecx]
    ["6650", "6658", "c3"]])
def test_registers_that_a_frame_does_not_have_are_not_followed(pieces):
    walk, function = follower("amd64", pieces)
    for place in places(pieces):
        for frame in (walk.in_epilogue(function, place), walk.in_prologue(function, place),
                      walk.in_body(function, place, False)):
            assert frame is None or {frame.base, *dict(frame.saved)} <= {
                *ARCHITECTURES["amd64"].dwarf_registers, "rip"}
    pushed = walk.in_prologue(function, places(pieces)[1])
    assert pieces[0] != "6650" or pushed == CodeFrame("rsp", 10, (("rip", -8),))


@pytest.mark.parametrize("arch", CODE)
def test_a_function_with_a_frame_record_is_left_to_the_walker(arch):
    walk, function = follower(arch, CODE[arch])
    assert walk.in_body(function, places(CODE[arch])[4], False) is None


@pytest.mark.parametrize("arch, pieces, link", [
    ("arm64", ["400000b4", "1f2003d5", "1f2003d5"], "x30"), ("riscv64", ["11c1", "0100"], "ra")])
def test_a_body_that_saved_no_return_address_calls_nothing(arch, pieces, link):
    walk, function = follower(arch, pieces)
    last = places(pieces)[-1]
    assert walk.in_body(function, last, False) == CodeFrame("sp", 0, (), link)
    assert walk.in_body(function, last, True) is None


@pytest.mark.parametrize("arch, call, other", [
    ("amd64", "e800000000", "e900000000"), ("amd64", "ffd0", "ffe0"), ("amd64", "41ff542410", "90"),
    ("amd64", "ff9510000000", "c3"), ("arm64", "00000094", "00000014"),
    ("arm64", "00013fd6", "00011fd6"), ("riscv64", "ef000000", "6f000000"),
    ("riscv64", "8290", "8280"), ("riscv64", "e7800000", "67800000")])
def test_a_return_address_follows_a_call(arch, call, other):
    for code, wanted in ((call, True), (other, False)):
        walk, function = follower(arch, [code])
        assert walk.follows_call(BASE + function.size) is wanted
        assert not walk.follows_call(BASE) and not walk.follows_call(1 << 63)
