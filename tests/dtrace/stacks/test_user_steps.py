"""Tests of the steps from the code of user programs to their callers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.bpf.layout import StepKind
from dtrace.stacks.frame_step import FrameStep
from dtrace.stacks.mapped_files import MappedFile
from dtrace.stacks.user_programs import ADDRESS, UserPrograms, frame_word
from dtrace.stacks.user_steps import UserStep, UserSteps, walk
from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import ImageError
from kinst.relocation.trap import TRAPS
from tests.conftest import ARCHES
from tests.dwarf import test_eh_frames
from tests.elfwriter import Elf
from tests.kinst.code.test_frame import BASE, BODIES, places

STACK = 0x7FFF_0000
LIBRARY = 0x8_0000_0000  # where the shared object is mapped
FIRST = 0x1078  # address of its code in the file, whose offset is 0x78
AMD64 = ARCHITECTURES["amd64"]
CALL = {"amd64": bytes.fromhex("e800000000"), "arm64": bytes.fromhex("00000094"),
        "riscv64": bytes.fromhex("ef000000")}


def memory(*records):
    """Return a function that reads frame records (saved frame, return address) 32 bytes apart."""
    words = {}
    for n, (outer, back) in enumerate(records):
        words[STACK + 32 * n], words[STACK + 32 * n + 8] = outer, back
    return words.get


def by_records(pc, frame, read, most, called=lambda _pc: True):
    registers = dict.fromkeys(AMD64.dwarf_registers, 0) | {"rip": pc, "rbp": frame, "rsp": STACK}
    return walk(pc, registers, AMD64,
                lambda pc, _is_return: UserStep(StepKind.RECORD, None, called(pc)), read, most)


def test_a_user_stack_is_walked_to_the_program_start():
    read = memory((STACK + 32, 0x1010), (STACK + 64, 0x2020), (0, 7), (0, 8))
    assert by_records(0x1000, STACK, read, 10) == [0x1000, 0x1010, 0x2020, 7]
    assert by_records(0x1000, STACK, read, 2) == [0x1000, 0x1010]
    # A word that does not follow a call is no return address.
    assert by_records(0x1000, STACK, read, 10, lambda pc: pc != 0x2020) == [0x1000, 0x1010]


@pytest.mark.parametrize("records, found", [
    ([(STACK, 0x1010)], [1, 0x1010]),  # the record points to itself
    ([(STACK - 64, 0x1010)], [1, 0x1010]),  # the next record is at a lower address
    ([(STACK + 32, 1 << 63)], [1]),  # the return address is in the kernel
    ([(STACK + 33, 0x1010)], [1, 0x1010]),  # the next record is misaligned
    ([(STACK + 32, 0x1010)], [1, 0x1010]),  # the next record is unmapped
    ([], [1]),
])
def test_a_broken_chain_of_frames_ends_the_walk(records, found):
    assert by_records(1, STACK, memory(*records), 100) == found
    assert by_records(1, 1 << 63, memory(*records), 100) == [1]
    assert by_records(1, STACK, memory(*records), 100, lambda _pc: False) == [1]


@given(st.dictionaries(st.integers(0, 40), st.integers(0, (1 << 64) - 1)),
       st.lists(st.tuples(st.sampled_from([StepKind.ON, StepKind.GUESS, StepKind.SIGNAL,
                                           StepKind.RECORD, StepKind.LAST]),
                          st.integers(-64, 64), st.booleans()), min_size=1, max_size=5))
def test_every_walk_ends(words, kinds):
    def step(pc, _is_return):
        kind, offset, called = kinds[pc % len(kinds)]
        if kind in (StepKind.RECORD, StepKind.LAST):
            return UserStep(kind, None, called)
        return UserStep(kind, FrameStep("rsp", offset, (("rip", 0, 8), ("rsp", 8, 8)),
                                        trap=kind == StepKind.SIGNAL), called)

    registers = dict.fromkeys(AMD64.dwarf_registers, STACK) | {"rip": 7}
    found = walk(7, registers, AMD64, step,
                 lambda address: words.get(address - STACK >> 3 & (1 << 64) - 1, 5), 50)
    assert found[0] == 7 and len(found) <= 50 and all(0 < pc <= ADDRESS for pc in found)


class Process:
    """A process that has mapped a shared object with call frame information."""

    def __init__(self, arch, code, frames=b"", symbols=(("f", FIRST, 0x40, 2),),
                 trampoline=None, outside=b""):
        self.arch, content = ARCHITECTURES[arch], Elf(
            arch=arch, kind=3, symbols=list(symbols), others={".eh_frame": frames},
            segments=[(FIRST, code.ljust(0x100, bytes(1)), 0x100)]).build()
        self.programs = UserPrograms(
            {}, contents=lambda path: content if path == "/l" else no(path))
        offset = content.index(code) & -4096
        self.moved = LIBRARY - (FIRST + offset - content.index(code))
        self.number = self.programs.number("p", 1, [
            MappedFile(LIBRARY, LIBRARY + 4096, offset, "/l")])
        self.steps = UserSteps(
            self.arch, TRAPS[arch], self.programs, lambda: trampoline,
            lambda address, size: outside[address - 0x5000 :][:size] if address >= 0x5000 else b"")

    def step(self, address, is_return=False):
        """Return the step from an address in the file."""
        return self.at(self.moved + address, is_return)

    def at(self, address, is_return=False):
        return self.steps.step(frame_word(self.number, address), is_return)


def no(path):
    raise ImageError(f"{path}: does not exist")


def frames_of(arch, low=FIRST, size=0x40, **options):
    """Return .eh_frame at address 0 for a function of amd64, whose return address is r16."""
    assert arch == "amd64"
    common = test_eh_frames.cie(b"zR", bytes((0,)))
    return common + test_eh_frames.fde(
        len(common), 0, low=low, size=size, encoding=test_eh_frames.ABSOLUTE, **options)


def test_call_frame_information_describes_the_caller():
    process = Process("amd64", b"\x90" * 4 + CALL["amd64"], frames_of("amd64"))
    assert process.step(FIRST) == (
        StepKind.ON, FrameStep("rsp", 8, (("rip", -8, 8),)), False, True)
    kind, step, called, _kept = process.step(FIRST + 9, True)
    assert kind == StepKind.ON and called and step.above
    assert (step.base, step.offset) == ("rsp", 16)
    assert dict((name, at) for name, at, _size in step.saved) == {"rip": -8, "rbp": -16}
    assert not process.step(FIRST + 8, True).called


def test_the_first_function_of_a_program_has_no_caller():
    process = Process("amd64", b"\x90", frames_of("amd64", code=test_eh_frames.UNDEFINED))
    assert process.step(FIRST).kind == StepKind.LAST


@pytest.mark.parametrize("arch", ARCHES)
def test_code_without_call_frame_information_is_followed(arch):
    code = b"".join(map(bytes.fromhex, BODIES[arch]))
    process = Process(arch, code, symbols=[("f", FIRST, len(code), 2)])
    body = process.step(places(BODIES[arch])[-1] - BASE + FIRST)
    assert body.kind == StepKind.GUESS and body.step.base == process.arch.sp
    assert body.step.offset == 32
    assert process.step(FIRST).kind == StepKind.GUESS  # the first instruction
    assert process.step(FIRST + len(code)).kind == StepKind.RECORD  # after the function


@pytest.mark.parametrize("arch", ARCHES)
def test_outside_files_only_words_after_a_call_are_return_addresses(arch):
    process = Process(arch, b"\x90", outside=CALL[arch] + bytes(8))
    end = 0x5000 + len(CALL[arch])
    assert process.at(end, True) == (StepKind.RECORD, None, True, True)
    assert process.at(end + 4, True) == (StepKind.RECORD, None, False, True)
    assert process.at(0x4000, True) == (StepKind.RECORD, None, False, True)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_signal_handler_returns_to_the_interrupted_code(arch):
    pc = ARCHITECTURES[arch].pc

    def step(lowered):
        return FrameStep(ARCHITECTURES[arch].sp, lowered, ((pc, 72, 8),), trap=True)

    process = Process(arch, b"\x90", trampoline=(0x5000, 0x5020, step),
                      outside=bytes.fromhex("ff54241090 6a0090" if arch == "amd64" else "00" * 32))
    word = frame_word(process.number, 0x5004)
    assert process.at(0x5004, True) == (StepKind.SIGNAL, step(0), True, True)
    assert process.programs.line(word) == "p`<signal handler called>"
    if arch == "amd64":  # the trampoline has pushed a word
        assert process.at(0x5007) == (StepKind.SIGNAL, step(8), True, True)
    assert process.at(0x5020, True).kind == StepKind.RECORD


def test_a_rule_with_a_register_that_is_not_general_counts_as_none():
    process = Process("amd64", b"\x90", frames_of("amd64", code=b"\x0c\x20\x08"))  # CFA = r32 + 8
    assert process.step(FIRST).kind == StepKind.GUESS


def test_a_signal_frame_of_a_file_ends_the_stack():
    common = test_eh_frames.cie(b"zRS", bytes((0,)))
    frames = common + test_eh_frames.fde(len(common), 0, low=FIRST,
                                         encoding=test_eh_frames.ABSOLUTE)
    assert Process("amd64", b"\x90", frames).step(FIRST).kind == StepKind.LAST


def test_without_symbols_a_described_function_is_followed_like_one_with_a_name():
    # sub sp, 16; str x30, [sp]; nop; ldr x30, [sp]; add sp, 16; ret, as clang describes it
    code = bytes.fromhex("ff4300d1 fe0300f9 1f2003d5 fe0340f9 ff430091 c0035fd6")
    common = test_eh_frames.cie(b"zR", bytes((0,)), code=b"\x0c\x1f\0")  # CFA = sp
    frames = common + test_eh_frames.fde(
        len(common), 0, low=FIRST, size=24, encoding=test_eh_frames.ABSOLUTE,
        code=b"\x44\x0e\x10\x44\x9e\x02")  # 4 later CFA = sp + 16, 4 later x30 at CFA - 16
    process = Process("arm64", code, frames, symbols=[("other", FIRST + 0x80, 4, 2)])
    body = process.step(FIRST + 8).step
    assert body.offset == 16 and body.saved[-1] == ("pc", -16, 8)
    last = process.step(FIRST + 20).step
    assert (last.base, last.offset, last.link) == ("sp", 0, "x30")


def test_the_trampoline_of_a_program_with_a_known_file_is_found(tmp_path):
    path = tmp_path / "p"
    path.write_bytes(Elf(symbols=[("f", 0x1000, 1, 2)]).build())
    step = FrameStep("rsp", 0, (("rip", 72, 8),), trap=True)
    programs = UserPrograms({"p": path})
    steps = UserSteps(AMD64, TRAPS["amd64"], programs, lambda: (0x5000, 0x5020, lambda _n: step),
                      lambda _address, _size: b"")
    found = steps.step(programs.frame("p", 0x5004), True)
    # Another process with this name may have other code there.
    assert found == (StepKind.SIGNAL, step, True, False)
    assert steps.step(programs.frame("p", 0x1000), False).kept


def test_damaged_call_frame_information_counts_as_none():
    process = Process("amd64", b"\x90" * 4 + CALL["amd64"], frames_of("amd64")[:-3])
    assert process.step(FIRST).kind == StepKind.GUESS
    assert process.step(FIRST + 9, True).called and not process.step(FIRST + 8, True).called


def test_steps_are_found_again_when_a_process_maps_more_files():
    process = Process("amd64", b"\x90", frames_of("amd64"))
    other = LIBRARY + 0x1_0000
    assert process.at(other).kind == StepKind.RECORD
    process.programs.number("p", 1, [MappedFile(other, other + 4096, 0, "/l")])
    assert process.at(other + (process.moved + FIRST - LIBRARY)).kind == StepKind.ON


def test_a_frame_that_ends_with_a_call_has_the_name_of_the_function_that_called():
    process = Process("amd64", b"\x90" * 16, symbols=[("f", FIRST, 8, 2), ("g", FIRST + 8, 8, 2)])
    word = frame_word(process.number, process.moved + FIRST + 8)
    assert process.programs.line(word) == "l`g"
    assert process.programs.line(word, is_return=True) == "l`f+0x8"
