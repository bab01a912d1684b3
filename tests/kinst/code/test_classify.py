import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.arch.architectures import ARCHITECTURES
from emu.elf.symbols import Symbol
from emu.guests.registry import FREEBSD
from emu.unicorn.arm64.cpu import ArmCpu
from kinst.amd64.classify import classify as amd64
from kinst.arm64 import classify as arm64_classify
from kinst.arm64.classify import classify as arm64
from kinst.arm64.classify import ends_exclusive, starts_exclusive
from kinst.code.listing import instructions
from kinst.probes.dispatcher import new_dispatcher
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Refuse, Rewrite, SetRegister
from kinst.riscv64 import classify as riscv64_classify
from kinst.riscv64 import dataflow as riscv64_dataflow
from kinst.riscv64.classify import classify as riscv64

PC = 0xFFFFFFFF80200000
MASK = (1 << 64) - 1


def dispatcher(arch):
    return new_dispatcher(ARCHITECTURES[arch], TRAPS[arch], FREEBSD[arch].traps.trap_frame, None)[0]


class State:
    """Registers and memory that a test sets; reading anything else is an error."""

    def __init__(self, memory=None, **registers):
        self.registers, self.memory = registers, dict(memory or {})

    def get(self, register):
        return 0 if register in ("xzr", "zero") else self.registers[register]

    def set(self, register, value):
        self.registers[register] = value & MASK

    def load(self, address, size):
        return self.memory[address]

    def store(self, address, size, value):
        self.memory[address] = value


def next_pc(classify, code, state):
    _length, verdict = classify(bytes.fromhex(code), PC)
    return verdict.next_pc(state)


@pytest.mark.parametrize("code", ["55", "4889e5", "c3", "e800000000", "0f05"])
def test_amd64_instruction_lengths_are_correct(code):
    raw = bytes.fromhex(code)
    assert amd64(raw + b"\x90" * 8, PC)[0] == len(raw)


@pytest.mark.parametrize("code, reason", [
    ("9d", "interrupt flag"), ("fb", "interrupt flag"), ("f4", "waits"), ("cc", "breakpoint"),
    ("0f0b", "exception"), ("48cf", "returns"), ("66e900000000", "operand-size"),
    ("ff28", "code segment"), ("67488d0510000000", "32-bit address"), ("0faa", "machine state"),
    ("c7f800000000", "relative"), ("0f05", "enters"), ("cb", "segment"),
    ("8ed0", "inhibits interrupts"), ("488e10", "inhibits interrupts"),  # MOV SS
    ("0fff00", "exception"), ("d6", "exception"), ("8ec8", "exception"),  # UD0, UDB, MOV CS
    ("0f22c8", "exception"), ("440f20c8", "exception"), ("440f23c0", "exception"),  # CR1 CR9 DR8
    ("f00200", "exception"), ("f00f1f00", "exception"),  # LOCK without a memory destination
    # prefixes that the instruction does not allow
    ("66c5f877", "exception"), ("660f38c8c0", "exception"),
    ("660f78c80408", "exception"),  # EXTRQ requires a ModRM reg field of 0
    # EVEX: zeroing without a mask; invalid L'L
    ("62f1fd8858c3", "exception"), ("62f17c6858c3", "exception"),
])
def test_amd64_refuses_instructions_that_cannot_run_elsewhere(code, reason):
    verdict = amd64(bytes.fromhex(code), PC)[1]
    assert isinstance(verdict, Refuse) and reason in verdict.reason


@pytest.mark.parametrize("code", [
    "55", "4889e5", "0fb606", "f00fb10f", "0f01f8", "fa", "ee",
    "8ed8", "8cd0", "0fb200", "c4e2798e00",  # MOV DS, MOV from SS, LSS, VPMASKMOVD
    "0f22d8", "440f22c0", "0f23e0", "f00010", "c5f877", "0f38c8c0", "62f17c7858c3", "62f17cc958c3",
])
def test_amd64_copies_position_independent_instructions(code):
    assert isinstance(amd64(bytes.fromhex(code), PC)[1], Copy)


@pytest.mark.parametrize("code, target", [
    ("488b0510000000", PC + 7 + 16),  # mov rax, [rip + 16]
    ("c70510000000efbeadde", PC + 10 + 16),  # mov dword [rip + 16], imm32
    ("4883250800000001", PC + 8 + 8),  # and qword [rip + 8], 1
    ("488d05f0ffffff", PC + 7 - 16),  # lea rax, [rip - 16]
])
def test_amd64_rip_relative_operands_keep_their_target(code, target):
    verdict = amd64(bytes.fromhex(code), PC)[1]
    assert isinstance(verdict, Rewrite) and verdict.displacement[1] == target


TRUTHS = [  # condition code, flags that satisfy the condition, flags that do not
    (0, 1 << 11, 0), (1, 0, 1 << 11), (2, 1, 0), (3, 0, 1), (4, 1 << 6, 0), (5, 0, 1 << 6),
    (6, 1 << 6, 0), (7, 0, 1), (8, 1 << 7, 0), (9, 0, 1 << 7), (10, 4, 0), (11, 0, 4),
    (12, 1 << 7, 1 << 7 | 1 << 11), (13, 0, 1 << 7), (14, 1 << 6, 0), (15, 0, 1 << 6),
]


@pytest.mark.parametrize("code, true, false", TRUTHS)
@pytest.mark.parametrize("short", [True, False])
def test_amd64_conditional_jumps_test_the_flags(code, true, false, short):
    text = f"7{code:x}10" if short else f"0f8{code:x}10000000"
    size = len(text) // 2
    assert next_pc(amd64, text, State(rflags=true)) == PC + size + 16
    assert next_pc(amd64, text, State(rflags=false)) == PC + size


def test_amd64_calls_push_the_original_return_address():
    state = State(rsp=0x1000)
    assert next_pc(amd64, "e810000000", state) == PC + 5 + 16
    assert state.registers["rsp"] == 0xFF8 and state.memory[0xFF8] == PC + 5


@pytest.mark.parametrize("code, registers, address", [
    ("ff10", {"rax": 0x5000}, 0x5000),  # call [rax]
    ("ff5008", {"rax": 0x5000}, 0x5008),  # call [rax + 8]
    ("ff542408", {"rsp": 0x1000}, 0x1008),  # call [rsp + 8]: SIB index 4 means no index
    ("ff14c500000010", {"rax": 2}, 0x10000010),  # call [rax * 8 + disp32]: base 5, mod 0
    ("ff54c508", {"rbp": 0x2000, "rax": 1}, 0x2010),  # call [rbp + rax * 8 + 8]: base 5, mod 1
    ("41ff55f8", {"r13": 0x2000}, 0x1FF8),  # call [r13 - 8]
    ("ff1510000000", {}, PC + 6 + 16),  # call [rip + 16]
    ("65ff142510000000", {"gs_base": 0x7000}, 0x7010),  # call gs:[16]
])
def test_amd64_indirect_calls_compute_the_operand_address(code, registers, address):
    state = State({address: 0x1234}, **{"rsp": 0x1000, **registers})
    assert next_pc(amd64, code, state) == 0x1234
    assert state.memory[state.registers["rsp"]] == PC + len(code) // 2


@pytest.mark.parametrize("code, rcx, flags, taken, left", [
    ("e210", 2, 0, True, 1), ("e210", 1, 0, False, 0), ("e210", 0, 0, True, MASK),
    ("e110", 2, 1 << 6, True, 1), ("e110", 2, 0, False, 1),
    ("e010", 2, 0, True, 1), ("e010", 2, 1 << 6, False, 1),
    ("67e210", 1 << 32 | 2, 0, True, 1), ("e310", 0, 0, True, 0),
    ("e310", 1 << 32, 0, False, 1 << 32),
    ("67e310", 1 << 32, 0, True, 1 << 32),
])
def test_amd64_loops_and_jrcxz_test_the_counter(code, rcx, flags, taken, left):
    state = State(rcx=rcx, rflags=flags)
    size = len(code) // 2
    assert next_pc(amd64, code, state) == PC + size + (16 if taken else 0)
    assert state.registers["rcx"] == left


def test_amd64_ret_with_an_immediate_pops_the_arguments():
    state = State({0x1000: 0x77}, rsp=0x1000)
    assert next_pc(amd64, "c20800", state) == 0x77 and state.registers["rsp"] == 0x1010


@given(st.binary(min_size=15, max_size=15))
def test_amd64_classifies_every_byte_string(code):
    length, verdict = amd64(code, PC)
    assert 0 <= length <= 15 and verdict is not None


@pytest.mark.parametrize("text", [
    "670fb94002", "0fb9c0", "480fb90500000000", "f20fb9848811223344",  # UD1
    "d6", "660f78d00408", "f20f78c00408", "6648c20800", "66480f8000000000",
    "6648e800000000",
])
def test_amd64_lengths_that_the_decoder_gets_wrong_follow_the_manual(text):
    code = bytes.fromhex(text)
    assert amd64(code + b"\x90\xc3", PC)[0] == len(code)
    assert dispatcher("amd64").lengths(code + b"\x90\xc3") == [len(code), 1, 1]


def test_amd64_splitting_code_keeps_the_operands_of_ud1():
    """``-fsanitize-trap`` generates UD1 with operands, such as ``ud1 2(%eax), %eax``."""
    code = ["55", "670fb94002", "4889e5", "c3"]
    raw = [bytes.fromhex(c) for c in code]
    assert ARCHITECTURES["amd64"].split(b"".join(raw)) == raw
    assert ARCHITECTURES["amd64"].instruction_length(raw[1]) == 5


@pytest.mark.parametrize("text", [
    "0fff00", "0fffc0",  # UD0 has a ModRM byte only on Intel CPUs
    "660f8000000000", "66e800000000", "66e900000000", "66f20f8000000000",
])
def test_amd64_lengths_that_depend_on_the_vendor_end_the_listing(text):
    code = bytes.fromhex(text)
    length, verdict = amd64(code + b"\x90\xc3", PC)
    assert length == 0 and isinstance(verdict, Refuse)
    assert verdict.reason in ("raises an exception", "is a jump with an operand-size prefix")
    assert dispatcher("amd64").lengths(code + b"\x90\xc3") == []


def word(code):
    return code.to_bytes(4, "little").hex()


@pytest.mark.parametrize("code, state, target", [
    (0x14000004, State(), PC + 16),  # b (unconditional branch)
    (0x17FFFFFF, State(), PC - 4),
    (0xD61F0060, State(x3=0x1234), 0x1234),  # br x3
    (0xD65F03C0, State(x30=0x1234), 0x1234),  # ret
    (0x54000080, State(pstate=1 << 30), PC + 16),  # b.eq
    (0x54000080, State(pstate=0), PC + 4),
    (0x5400008E, State(pstate=0), PC + 16),  # b.al
    (0x5400008B, State(pstate=1 << 31), PC + 16),  # b.lt
    (0x34000085, State(x5=0xFFFFFFFF00000000), PC + 16),  # cbz w5 ignores the upper half
    (0xB4000085, State(x5=0xFFFFFFFF00000000), PC + 4),  # cbz x5
    (0xB400009F, State(), PC + 16),  # cbz xzr
    (0x37F80085, State(x5=1 << 31), PC + 16),  # tbnz w5, #31
    (0xB7000085, State(x5=1 << 32), PC + 16),  # tbnz x5, #32
    (0xB7000085, State(x5=1), PC + 4),
])
def test_arm64_branches_reach_their_target(code, state, target):
    assert next_pc(arm64, word(code), state) == target


@pytest.mark.parametrize("code", [0x94000004, 0xD63F0060])  # bl, blr x3
def test_arm64_calls_set_the_original_return_address(code):
    state = State(x3=PC + 16)
    assert next_pc(arm64, word(code), state) == PC + 16
    assert state.registers["x30"] == PC + 4


@pytest.mark.parametrize("code, value", [
    (0x10000080, PC + 16),  # adr x0, .+16
    (0xB0000000, (PC & ~0xFFF) + 0x1000),  # adrp x0, .+0x1000
    (0xF0FFFFF3, (PC & ~0xFFF) - 0x1000),  # adrp x19, .-0x1000
])
def test_arm64_adr_and_adrp_become_constants(code, value):
    verdict = arm64(bytes.fromhex(word(code)), PC)[1]
    assert isinstance(verdict, Rewrite)
    assert int.from_bytes(verdict.data, "little") == value
    assert int.from_bytes(verdict.code, "little") & 31 == code & 31


@pytest.mark.parametrize("code, reason", [
    (0xD69F03E0, "returns"), (0xD4000001, "exception"), (0xD503207F, "waits"),
    (0xD538400B, "last exception"), (0xD5384000, "last exception"),
    (0xD5385200, "last exception"), (0xD5386000, "last exception"), (0xD50041BF, "stack pointer"),
    (0x885F7C41, "exclusive"), (0xC8037C41, "exclusive"), (0xDC000080, "reserved"),
    (0x00000000, "not an instruction"), (0x80000000, "SME"), (0xD5004101, "not an instruction"),
    (0xD53C4000, "last exception"), (0xD51C4020, "last exception"),  # SPSR_EL2, ELR_EL2
    (0xD53C5200, "last exception"), (0xD53C6000, "last exception"),  # ESR_EL2, FAR_EL2
    (0xD53C6080, "last exception"), (0xD53860A0, "last exception"),  # HPFAR_EL2, PFAR_EL1
    (0xD53C60A0, "last exception"), (0xD5385120, "last exception"),  # PFAR_EL2, AFSR1_EL1
    (0xD508779F, "last exception"), (0xD50877BF, "last exception"),  # GCSPUSHX, GCSPOPCX
    (0xD501401F, "masks"), (0xD501411F, "masks"), (0xD5184301, "masks"),  # MSR ALLINT
    (0xD501421F, "masks"), (0xD501431F, "masks"), (0xD5184321, "masks"),  # MSR PM
    (0x895F7FE9, "exclusive"), (0xC95FFFE9, "exclusive"),  # LDTXR, LDATXR
    (0x89017FE9, "exclusive"), (0xC901FFE9, "exclusive"),  # STTXR, STLTXR
])
def test_arm64_refuses_unsafe_instructions(code, reason):
    verdict = arm64(bytes.fromhex(word(code)), PC)[1]
    assert isinstance(verdict, Refuse) and reason in verdict.reason


@pytest.mark.parametrize("code", [0xA9BF7BFD, 0x8B010000, 0x08A07C41, 0x48207C82, 0x88DFFC41,
                                  0xD5033FDF, 0xD53BD040, 0x4E040C20, 0xD503201F,
                                  # CAST, CASPT, CFINV, MSR UAO, MRS ALLINT, MRS SPSR_EL12
                                  0xC9A17C41, 0x49827C84, 0xD500401F, 0xD500407F, 0xD5384301,
                                  0xD53D4000])
def test_arm64_copies_position_independent_instructions(code):
    assert isinstance(arm64(bytes.fromhex(word(code)), PC)[1], Copy)


@pytest.mark.parametrize("code, before, after, x9", [
    (0xD50342DF, 0x5, 0x85, None),  # msr daifset, #2
    (0xD50342FF, 0x85, 0x5, None),  # msr daifclr, #2
    (0xD50344FF, 0x3C5, 0x2C5, None),  # msr daifclr, #4
    (0xD53B4229, 0x600003C5, 0x600003C5, 0x3C0),  # mrs x9, daif
    (0xD51B4229, 0x600003C5, 0x60000005, 0),  # msr daif, x9
    (0xD503245F, 0x405, 0x5, None),  # bti c
    (0xD8000080, 0x5, 0x5, None),  # prfm (literal)
])
def test_arm64_emulated_instructions_use_the_saved_pstate(code, before, after, x9):
    state = State(pstate=before, x9=0)
    assert next_pc(arm64, word(code), state) == PC + 4
    assert state.registers["pstate"] == after
    assert x9 is None or state.registers["x9"] == x9


def test_arm64_casp_is_not_an_exclusive_access():
    assert not starts_exclusive(bytes.fromhex(word(0x48607C82)))
    assert starts_exclusive(bytes.fromhex(word(0x885F7C41)))
    assert ends_exclusive(bytes.fromhex(word(0x88037C41)))


@pytest.mark.parametrize("load, store", [
    (0x895F7FE9, 0x89017FE9), (0xC95F7D6A, 0xC9017D6A), (0x895FFFE9, 0x8901FFE9),
    (0xC95FFFE9, 0xC901FFE9),
])
def test_arm64_unprivileged_exclusive_sequences_are_not_probed(load, store):
    """In the sequence LDTXR/LDATXR, ADD, STTXR/STLTXR, RET, only the RET can be probed."""
    code = b"".join(w.to_bytes(4, "little") for w in (load, 0x11000529, store, 0xD65F03C0))
    listed = instructions(TRAPS["arm64"], code, Symbol("f", PC, len(code), 2))
    assert [i.offset for i in listed if not isinstance(i.verdict, Refuse)] == [12]
    native = dispatcher("arm64")
    assert [native.probe(n)[0] - PC for n in native.add_all(PC, code, 0, 16, 0, 0)] == [12]


def test_arm64_unprivileged_compare_and_swap_is_not_exclusive():
    for code in (0xC9A17C41, 0x49827C84):  # CAST, CASPT
        raw = bytes.fromhex(word(code))
        assert not starts_exclusive(raw) and not ends_exclusive(raw)


@given(st.integers(0, (1 << 32) - 1))
def test_arm64_classifies_every_word(code):
    assert arm64(code.to_bytes(4, "little"), PC)[0] == 4


@pytest.mark.parametrize("code, state, target", [
    ("6f000001", State(), PC + 16),  # j .+16
    ("6ff0dfff", State(), PC - 4),
    ("01a8", State(), PC + 16),  # c.j
    ("63085000", State(t0=0), PC + 16),  # beq zero, t0
    ("63085000", State(t0=1), PC + 4),
    ("63485000", State(t0=1), PC + 16),  # blt zero, t0
    ("63485000", State(t0=MASK), PC + 4),
    ("63685000", State(t0=MASK), PC + 16),  # bltu zero, t0
    ("01c9", State(a0=0), PC + 16),  # c.beqz a0
    ("01e9", State(a0=0), PC + 2),  # c.bnez a0
    ("8280", State(ra=0x1235), 0x1234),  # ret clears the lowest bit of its target
    ("67804500", State(a1=0x1000), 0x1004),  # jr 4(a1)
])
def test_riscv64_jumps_reach_their_target(code, state, target):
    assert next_pc(riscv64, code, state) == target


@pytest.mark.parametrize("code, size", [("ef000001", 4), ("e7800500", 4), ("8295", 2)])
def test_riscv64_calls_set_the_original_return_address(code, size):
    state = State(a1=PC + 16)
    assert next_pc(riscv64, code, state) == PC + 16
    assert state.registers["ra"] == PC + size


def test_riscv64_jalr_reads_its_base_before_writing_the_link_register():
    state = State(ra=0x4000)
    assert next_pc(riscv64, "e7804000", state) == 0x4004  # jalr ra, 4(ra)
    assert state.registers["ra"] == PC + 4


def test_riscv64_landing_pads_are_refused():
    """LPAD is AUIPC to x0; in a trampoline, it would not be a landing pad."""
    assert riscv64(bytes.fromhex("17100000"), PC)[1] == Refuse(
        "is a landing pad (LPAD) or a hint")


def test_riscv64_auipc_sets_its_register():
    verdict = riscv64(bytes.fromhex("17150000"), PC)[1]
    assert verdict == SetRegister("a0", PC + 0x1000, PC + 4)


@pytest.mark.parametrize("code, reason", [
    ("63a46200", "reserved"), ("63b46200", "reserved"), ("0b807202", "vendor"),
    ("73001000", "system"), ("1f000000", "longer than four bytes"),
    ("0290", "breakpoint"), ("2f250510", "load-reserved"), ("2f25b518", "load-reserved"),
    ("0000", "not an instruction"),
])
def test_riscv64_refuses_unsafe_instructions(code, reason):
    verdict = riscv64(bytes.fromhex(code), PC)[1]
    assert isinstance(verdict, Refuse) and reason in verdict.reason


@given(st.binary(min_size=4, max_size=4))
def test_riscv64_classifies_every_word(code):
    assert riscv64(code, PC)[0] in (2, 4)


@pytest.mark.parametrize("code, reason", [
    ("66e2fe", "operand-size"), ("66e310", "operand-size"), ("67ff142500000080", "32-bit address"),
    ("67ff10", "32-bit address"),
])
def test_amd64_refuses_jumps_with_unusual_sizes(code, reason):
    verdict = amd64(bytes.fromhex(code), PC)[1]
    assert isinstance(verdict, Refuse) and reason in verdict.reason


@pytest.mark.parametrize("text", [
    "0f01c9",  # MWAIT
    "0f01dc",  # STGI
    "0f01d9",  # VMMCALL
    "f30f01e8",  # SETSSBSY
    "f20f01ca", "f30f01ca",  # ERETS, ERETU
    "0f01c1", "0f01d4", "0f01d6", "0f37", "8fe97812c0",  # VMCALL VMFUNC XTEST GETSEC LLWPCB
])
def test_amd64_unlisted_instructions_are_refused(text):
    code = bytes.fromhex(text)
    length, verdict = TRAPS["amd64"].instructions.classify(code, PC)
    assert length == len(code) and isinstance(verdict, Refuse), (text, verdict)


@pytest.mark.parametrize("text", [
    "0f1cc8", "6763c1", "f20fbcc1", "f20f38f808", "62f27e4852c1", "62f57c4858c1",
    # APX: REX2 (a load, MOVZX, a 64-bit and a 16-bit immediate, JMPABS), EVEX map 4
    "d5188b00", "d580b60411", "d508b80102030405060708", "66d500c7c00102",
    "d500a10102030405060708", "62f4fc1801c8", "62f4f41083c805", "62f4f41081c805060708",
    "62f47d0881c80506", "62f47c08f6c005", "62f4fc0824c805", "62f47c08f000", "62f4fc088fc0",
])
def test_amd64_instructions_of_known_length_do_not_end_the_listing(text):
    code = bytes.fromhex(text)
    length, verdict = TRAPS["amd64"].instructions.classify(code + b"\x90\xc3", PC)
    assert length == len(code), text
    assert isinstance(verdict, Refuse | Copy), text
    native = dispatcher("amd64").lengths(code + b"\x90\xc3")
    assert native == [len(code), 1, 1]


@pytest.mark.parametrize("text", [
    "d50070ff", "d500e800000000", "d580800000", "d5803840", "d500660000", "48d5188b00",
    "62f47c08eac0",
])
def test_amd64_encodings_that_apx_forbids_are_invalid(text):
    length, verdict = TRAPS["amd64"].instructions.classify(bytes.fromhex(text), PC)
    assert length == 0 and verdict.reason == "is not an instruction"


def test_amd64_xop_lengths_depend_on_the_operands():
    """Two XOP instructions with the same opcode differ in length because their operands differ."""
    code = bytes.fromhex("8fe878c0c101" "8fe878c044240801" "90" "c3")
    assert dispatcher("amd64").lengths(code) == [6, 8, 1, 1]


@pytest.mark.parametrize(("text", "segment"), [
    ("643eff10", "fs_base"), ("653eff20", "gs_base"), ("642eff10", "fs_base"),
    ("643eff20", "fs_base"), ("3eff20", None), ("6465ff20", "gs_base"),
])
def test_amd64_ignored_segment_prefixes_keep_the_earlier_prefix(text, segment):
    _length, verdict = TRAPS["amd64"].instructions.classify(bytes.fromhex(text), PC)
    assert verdict.memory.segment == segment


@pytest.mark.parametrize(("rows", "declared"), [
    (arm64_classify.ROWS, arm64_classify.OVERLAPS),
    (riscv64_classify.WIDE, riscv64_classify.WIDE_OVERLAPS),
    (riscv64_classify.COMPRESSED, riscv64_classify.COMPRESSED_OVERLAPS),
    (riscv64_dataflow.WIDE[:-1], riscv64_dataflow.WIDE_OVERLAPS),
    (riscv64_dataflow.NARROW[:-1], riscv64_dataflow.NARROW_OVERLAPS),
])
def test_table_rows_overlap_only_where_declared(rows, declared):
    found = {}
    for j, (mask, value, _verdict) in enumerate(rows):
        earlier = tuple((m, v) for m, v, _verdict in rows[:j] if (v ^ value) & m & mask == 0)
        if earlier:
            found[mask, value] = earlier
    assert found == declared


def test_the_last_riscv64_dataflow_row_matches_everything():
    for rows in (riscv64_dataflow.WIDE, riscv64_dataflow.NARROW):
        assert rows[-1][:2] == (0, 0)


@pytest.mark.parametrize("word", [
    0xDAC1A3FE, 0xDAC1A7FE, 0xDAC183FE, 0xF380001F, 0xF3A0001F, 0x5500001F,  # PAuth_LR
    0x19010440, 0x19410440, 0x19810440, 0x1D010440, 0x19C10440,  # CPYFP CPYFM CPYFE CPYP SETP
    0xD5031000, 0xD5031021, 0xD5233060, 0xD503307F, 0xD6BF03E0,  # WFET WFIT TSTART TCOMMIT DRPS
])
def test_arm64_instructions_that_cannot_be_displaced_alone_are_refused(word):
    _length, verdict = TRAPS["arm64"].instructions.classify(word.to_bytes(4, "little"), PC)
    assert isinstance(verdict, Refuse), hex(word)


def test_arm64_drps_is_not_an_authenticated_branch():
    _length, verdict = TRAPS["arm64"].instructions.classify((0xD6BF03E0).to_bytes(4, "little"), PC)
    assert verdict == Refuse("returns from an exception")


@pytest.mark.parametrize("text", ["c881", "0080", "4084", "008c"])
def test_riscv64_zcb_loads_and_stores_are_copied(text):
    assert TRAPS["riscv64"].instructions.classify(bytes.fromhex(text), PC) == (2, Copy())


@pytest.mark.parametrize("code", [0xD503245F, 0xD503249F, 0xD50342DF, 0xD50342FF, 0xD51B4220,
                                  0xD53B4220, 0x14000002, 0xD65F03C0])
def test_arm64_verdicts_end_blocks_where_the_cpu_model_does(code):
    """Blocks end where the CPU model ends them, so that probes change neither time nor schedule."""
    raw = code.to_bytes(4, "little")
    assert arm64(raw, PC)[1].ends_block is ArmCpu._block_ends(raw)
