import struct
import subprocess
import sys

import pytest

from dtrace.calls.calls import Evaluation, parse
from dtrace.stacks.stack import Stacks
from dwarf.debug_file import DebugDataError
from dwarf.frames import Frames
from emu.machine.call import Caller
from kinst.probes.breakpoints import Breakpoints
from kinst.providers import kinst_provider
from tests.forked import completed


def traced(machine, call, function, tell):
    """Trace a call; call ``tell(offset, text, registers)`` for each executed instruction."""
    def fire(probe, state):
        tell(probe.instruction.offset, machine.arch.disassemble(
            probe.instruction.code, probe.instruction.address), state.get)

    breakpoints = Breakpoints(machine, fire)
    kinst_provider.create(breakpoints, function, "")
    breakpoints.enable()
    Evaluation(Caller(machine)).run(parse(call))
    breakpoints.disable()


@pytest.mark.parametrize("debug_data", [True, False])
def test_stacks_are_correct_at_every_instruction_of_a_recursion(booted, debug_data):
    """Compare each stack with a recursion depth that is counted independently.

    With debug data the stack is also correct while the frame is set up and, on amd64, while it is
    torn down.  Without debug data it is correct at the first instruction and once the frame is
    complete.
    """
    stacks, symbols = Stacks(booted), booted.image.symbols
    if not debug_data:
        for _base, _begin, _end, sources in stacks._sources._parts:
            sources._frames = Frames(b"")
    outside, compared = [], 0  # per call: [frame pointer at entry, whether the pointer has changed]

    def tell(offset, text, get):
        nonlocal compared
        pointer = get(booted.arch.frame_record[0])
        if offset == 0:
            outside.append([pointer, False])
        outside[-1][1] |= pointer != outside[-1][0]
        made, whole = outside[-1][1], pointer != outside[-1][0]
        if offset == 0 or whole or (debug_data and (not made or booted.arch.name == "amd64")):
            own, *callers = (address for address, _return in stacks.addresses(get, 100))
            functions = [symbols.function_at(own), *(symbols.function_at(a - 1) for a in callers)]
            names = [f.name if f else None for f in functions]
            assert names[: len(outside)] == ["fibonacci"] * len(outside), (offset, text)
            assert names.count("fibonacci") == len(outside), (offset, text)
            compared += 1
        if text.split()[0] in ("ret", "c.jr"):
            outside.pop()

    traced(booted, "fibonacci(5)", "fibonacci", tell)
    assert not outside and compared > 100


def test_the_stack_continues_past_a_call_to_a_null_pointer(booted):
    """Simulate a call to a null pointer from a function that has not set up its frame yet."""
    inside = booted.symbol("account").address + 8
    registers = booted.registers() | {booted.arch.pc: 0}
    kept = booted.snapshot()
    if booted.arch.link is None:
        registers[booted.arch.sp] -= 8
        booted.write_u64(registers[booted.arch.sp], inside)
    else:
        registers[booted.arch.link] = inside
    stack = list(Stacks(booted).addresses(registers.__getitem__))
    high = registers[booted.arch.sp] >> 63
    assert stack[:2] == ([(0, False), (inside, True)] if high else [])
    if high:
        assert Stacks(booted).lines(0, False) == ["0x0"]
    booted.restore(kept)


def run(*arguments):
    return completed("kinst_emu.commands.kdtrace", arguments)


def test_stacks_are_printed_with_inline_functions_and_lines(arch):
    result = run("-q", "-k", f"teaching/{arch}", "-n", "kinst::charge:entry", "--stack=3",
                 "-c", "account(5)")
    assert result.returncode == 0, result.stderr
    _end, first, second, *_ = result.stdout.splitlines()
    assert first.startswith(" " * 14 + "kernel`charge [inlined]  ") and "lesson.c:" in first
    assert second.startswith(" " * 14 + "kernel`account+0x") and "lesson.c:" in second


@pytest.mark.parametrize("arch", ["arm64", "riscv64"])
def test_a_faulting_call_prints_the_stack(arch):
    """Call strlen(0); amd64 is left out, since its teaching kernel can read address 0."""
    program = "from kinst_emu.commands.entry import kinst; kinst()"
    result = subprocess.run(
        [sys.executable, "-c", program, "call", "-k", f"teaching/{arch}", "strlen(0)"],
        capture_output=True, text=True)
    assert result.returncode == 1 and "kernel`strlen+0x" in result.stdout
    assert result.stderr.count("\n") == 1


def entry(low, size, *operations, cie=0):
    body = struct.pack("<IQQ", cie, low, size) + bytes(operations)
    body += bytes(-(4 + len(body)) % 8)
    return struct.pack("<I", len(body)) + body


COMMON = struct.pack("<I", 20) + struct.pack("<IB", 0xFFFFFFFF, 4) + bytes(
    [0, 8, 0, 1, 0x78, 16, 0x0C, 7, 8, 0x90, 1, 0, 0, 0, 0])  # CFA = rsp + 8, RA at CFA - 8


def test_frame_rules_come_from_the_row_that_covers_the_address():
    section = COMMON + entry(0x1000, 16, 0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6) + entry(0x2000, 4)
    frames = Frames(section)
    assert frames.rule(0xFFF) is None and frames.rule(0x1010) is None
    first, pushed, moved = (frames.rule(at) for at in (0x1000, 0x1001, 0x1004))
    assert (first.base, first.offset, first.saved, first.returns) == (7, 8, {16: -8}, 16)
    assert (pushed.base, pushed.offset, pushed.saved) == (7, 16, {16: -8, 6: -16})
    assert (moved.base, moved.offset) == (6, 16) and frames.rule(0x2003).saved == {16: -8}


@pytest.mark.parametrize("section", [
    COMMON[:10], COMMON + entry(0x1000, 8)[:10], b"\xff\xff\xff\xff" + bytes(12),
    struct.pack("<II", 8, 0) + bytes(4),
])
def test_a_damaged_debug_frame_section_is_refused(section):
    with pytest.raises(DebugDataError, match=r"damaged \.debug_frame"):
        Frames(section)


@pytest.mark.parametrize("damage", [
    entry(0x1000, 8, 0x3F), entry(0x1000, 8, cie=0x7000), entry(0x1000, 8, 0x0E, 0x80, cie=25),
    entry(0x1000, 8, 0x0B),  # DW_CFA_restore_state without a remembered state
    entry(0x1000, 8, cie=24),  # an entry whose CIE is the entry itself
])
def test_a_damaged_entry_is_reported_when_it_is_needed(damage):
    frames = Frames(COMMON + damage)
    assert frames.rule(0x2000) is None
    with pytest.raises(DebugDataError, match=r"damaged \.debug_frame at 0x18"):
        frames.rule(0x1000)


@pytest.mark.parametrize("arch, entry", [("amd64", "calltrap"), ("arm64", "handle_el1h_sync")])
def test_the_stack_of_a_panic_continues_past_the_trap_frame(arch, entry):
    """Read an unmapped address; the riscv64 kernel is left out, since it has no page tables."""
    result = subprocess.run(
        [sys.executable, "-c", "from kinst_emu.commands.entry import kinst; kinst()", "call", "-k",
         f"teaching/{arch}", "--unchecked", "strcmp(0x7fffffff0000, 0)"],
        capture_output=True, text=True)
    assert result.returncode == 1 and "panicked" in result.stderr
    names = [line.split()[0].removeprefix("kernel`").split("+")[0]
             for line in result.stdout.splitlines() if line.startswith(" " * 14)]
    assert names[names.index(entry) + 1] == "strcmp"
