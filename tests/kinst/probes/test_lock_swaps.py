"""Tests of probes for locks on the teaching kernels, with locks that the tests make up.

The tests overwrite ``describe``, ``classify`` and ``collatz`` with code of a kernel that swaps the
word of a lock, and calls ``note_letters`` if that fails.  Kinds of locks use members of the
teaching kernel's structures: ``struct command`` has three words.
"""

import dataclasses
import struct

import pytest

from dtrace.debug.kernel_types import kernel_types
from emu.guest.guest import GuestProbes, LockKind, LockMembers, LockPath, LockProbes
from emu.guest.static_probe import Argument, StaticProbe
from emu.machine.call import Caller
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.probed_code import ProbeError
from tests.kinst.code.test_operands import assembled
from tests.kinst.code.test_swaps import riscv64

THREAD, OTHER = 0xFFFF_8000_0000_1000, 0xFFFF_8000_0000_2000
SLOW = 77  # what the path returns
MUTEX, SHARED = 1, 2


def jump(arch, distance):
    """Return a jump that does not link."""
    if arch == "amd64":
        return b"\xe9" + struct.pack("<i", distance - 5)
    if arch == "arm64":
        return struct.pack("<I", 0x14000000 | distance >> 2 & 0x3FFFFFF)
    return struct.pack("<I", (distance & 0x100000) << 11 | (distance & 0x7FE) << 20
                       | (distance & 0x800) << 9 | distance & 0xFF000 | 0x6F)


def returning(arch, number):
    """Return code that returns a small number to the caller."""
    if arch == "amd64":
        return assembled(arch, f"mov eax, {number}; ret")
    if arch == "arm64":
        return assembled(arch, f"mov x0, #{number}; ret")
    return riscv64(number << 20 | 0x513, 0x8082)


# Code of f(lock, new, expected) that swaps the word at offset 16; if that fails, it jumps over code
# that returns
SWAP = {
    "amd64": assembled("amd64", "mov rax, rdx; lock cmpxchg qword ptr [rdi + 16], rsi; jne 0x1011"),
    "arm64": assembled("arm64", "add x8, x0, #16; mov w11, #1; ldaxr x10, [x8]; cmp x10, x2; "
                       "b.ne #0x1018; stxr w11, x1, [x8]; cmp w11, #0; cset w9, eq; "
                       "cbz w9, #0x102c"),
    "riscv64": riscv64(0x01050713, 0x4785, 0x100736AF, 0x00C69463, 0x18B737AF, 0xE781),
}


def swapping(arch, otherwise):
    """Return code that swaps and returns 0; or, if it fails, goes on with ``otherwise``."""
    done = returning(arch, 0)
    return SWAP[arch] + done + otherwise(len(SWAP[arch]) + len(done))


def overwrite(machine, name, code):
    symbol = machine.symbol(name)
    nop = {"amd64": b"\x90", "arm64": b"\x1f\x20\x03\xd5", "riscv64": b"\x01\x00"}
    pad = nop[machine.arch.name]
    assert len(code) <= symbol.size
    machine.write(symbol.address, code + pad * ((symbol.size - len(code)) // len(pad)))


@pytest.fixture(params=[MUTEX, SHARED])
def kind(request):
    return request.param


@pytest.fixture
def machine(booted, kind):
    """``classify`` acquires a lock, or calls ``audit``, which tries again; ``refund`` releases it,
    or calls ``note_letters``, which does not."""
    arch = booted.arch.name

    def to(caller, name):
        return lambda at: jump(arch, booted.symbol(name).address
                               - booted.symbol(caller).address - at)

    overwrite(booted, "classify", swapping(arch, to("classify", "audit")))
    overwrite(booted, "audit", swapping(arch, lambda at: returning(arch, SLOW)))
    overwrite(booted, "refund", swapping(arch, to("refund", "note_letters")))
    overwrite(booted, "note_letters", returning(arch, SLOW))
    pair = [StaticProbe("locks", "kernel", "none", name, (Argument("struct command *", ""),), ())
            for name in ("acquire", "release")]
    kinds = (None, LockKind("struct command", "run", 7, 0),
             LockKind("struct command", "run", 31, 1, sharers=5))
    locks = LockProbes("locks", "console_lock", (
        LockPath("audit", "acquire", kind, True), LockPath("note_letters", "release", kind, False)))
    booted.guest = dataclasses.replace(
        booted.guest, probes=GuestProbes(declared=lambda image, memory: pair, locks=locks),
        threads=dataclasses.replace(booted.guest.threads, locks=LockMembers(
            "struct command", "name", 24, 15, kinds)))
    return booted


def steps(kind):
    """Return calls: (function, new word, expected word, result, probe that fires, arguments)."""
    if kind == MUTEX:
        return [("classify", THREAD, 0, 0, "acquire", 0),
                ("classify", OTHER, 0, SLOW, None, 0),  # another thread holds it
                ("refund", 0, THREAD | 2, SLOW, None, 0),  # the word has no flag
                ("classify", THREAD | 2, THREAD, 0, None, 0),  # only a flag is set
                ("refund", THREAD, THREAD | 2, 0, None, 0),
                ("refund", 0, THREAD, 0, "release", 0),
                ("audit", OTHER, 0, 0, "acquire", 0),  # the path acquires it
                ("note_letters", 0, 0, SLOW, None, 0)]
    return [("classify", 1 | 1 << 5, 1 | 0 << 5, SLOW, None, 1),  # the word is 0 at first
            ("classify", THREAD, 0, 0, "acquire", 0),
            ("refund", 1, THREAD, 0, "release", 0),
            ("classify", 1 | 1 << 5, 1, 0, "acquire", 1),
            ("classify", 1 | 2 << 5, 1 | 1 << 5, 0, "acquire", 1),
            ("classify", 3 | 2 << 5, 1 | 2 << 5, 0, None, 1),  # only a flag is set
            ("refund", 1 | 1 << 5, 3 | 2 << 5, 0, "release", 1),
            ("audit", 1 | 2 << 5, 1 | 1 << 5, 0, "acquire", 1),
            ("refund", 1 | 1 << 5, 1 | 2 << 5, 0, "release", 1),
            ("refund", 1, 1 | 1 << 5, 0, "release", 1)]


def called(machine, kind, lock):
    return [Caller(machine).call(machine.symbol(name).address, [lock, new, expected], name)
            for name, new, expected, *_others in steps(kind)]


def a_lock(machine, kind):
    at = machine.symbol("notes").address
    machine.write(at, struct.pack("<3Q", kind << 24, 0, 0))
    return at


def types(machine):
    return lambda: kernel_types(machine.image)


@pytest.mark.parametrize("path", PATHS)
def test_probes_fire_for_locks_that_are_acquired_or_released_at_once(machine, kind, path):
    lock = a_lock(machine, kind)
    plain = machine.snapshot()
    assert called(machine, kind, lock) == [one[3] for one in steps(kind)]
    untraced = machine.digest()
    machine.restore(plain)
    breakpoints = Breakpoints(machine, path=path, records=True)
    numbers = [breakpoints.add_static(n, types(machine)) for n in (0, 1)]
    breakpoints.enable()
    assert called(machine, kind, lock) == [one[3] for one in steps(kind)]
    breakpoints.disable()
    assert machine.digest() == untraced
    assert [(one.probe.name, one.registers[:2]) for one in breakpoints.firings()] == [
        (probe, (lock, shared)) for *_call, probe, shared in steps(kind) if probe]
    assert [breakpoints.dispatcher.probe(n)[4] for n in numbers] == [
        sum(one[4] == name for one in steps(kind)) for name in ("acquire", "release")]


def test_a_path_that_acquires_something_else_does_not_fire(machine, kind):
    """The path's own swaps may be of other words: the kind of the lock is checked."""
    lock = a_lock(machine, 3 - kind)
    breakpoints = Breakpoints(machine, records=True)
    breakpoints.add_static(0, types(machine))
    breakpoints.enable()
    machine.write_u64(lock + 16, 0)
    Caller(machine).call(machine.symbol("audit").address, [lock, THREAD, 0], "audit")
    breakpoints.disable()
    assert machine.read_u64(lock + 16) == THREAD
    assert list(breakpoints.firings()) == []


def test_without_the_kernels_types_a_probe_of_locks_is_refused(machine, kind):
    breakpoints = Breakpoints(machine)
    with pytest.raises(ProbeError, match="locks:kernel:none:acquire: the words of locks cannot be "
                                         "found: the kernel has neither DWARF nor CTF"):
        breakpoints.add_static(0)
    assert breakpoints.add_static(0, types(machine)) == 0, "nothing is left of the first attempt"


@pytest.mark.parametrize("size, found", [(8, False), (4, True)])
def test_the_search_ends_at_a_test_of_what_may_be_the_kernels_variable(machine, kind, size, found):
    """After the swap, a variable is loaded and tested before ``audit`` is called."""
    arch = machine.arch.name
    wide = size == 8
    test = {"amd64": b"\x48" * wide + bytes.fromhex("833900" "7506"),  # cmp $0, (%rcx); jne
            "arm64": assembled("arm64", f"ldr {'x' if wide else 'w'}4, [x3]; cbz x4, #0x1010"),
            "riscv64": riscv64(0x00073683 if wide else 0x00072683, 0xE681)}[arch]
    entry = machine.symbol("classify").address

    def otherwise(at):
        code = test + returning(arch, 0)
        return code + jump(arch, machine.symbol("audit").address - entry - at - len(code))

    overwrite(machine, "classify", swapping(arch, otherwise))
    lock = a_lock(machine, kind)
    breakpoints = Breakpoints(machine, records=True)
    breakpoints.add_static(0, types(machine))
    breakpoints.enable()
    Caller(machine).call(entry, [lock, THREAD, 0], "classify")
    breakpoints.disable()
    assert len(list(breakpoints.firings())) == found


# As SWAP, without the branch; the address is in another register, and the usual one is cleared
ELSEWHERE = {
    "amd64": assembled("amd64", "mov r8, rdi; xor edi, edi; mov rax, rdx; "
                       "lock cmpxchg qword ptr [r8 + 16], rsi"),
    "arm64": assembled("arm64", "add x12, x0, #16; mov x8, #0; mov w11, #1; ldaxr x10, [x12]; "
                       "cmp x10, x2; b.ne #0x101c; stxr w11, x1, [x12]"),
    "riscv64": riscv64(0x01050813, 0x4701, 0x4785, 0x100836AF, 0x00C69463, 0x18B837AF),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("differs", [False, True])
def test_swaps_that_share_the_code_after_them_fire_once(machine, kind, path, differs):
    """``collatz`` swaps, and jumps to the instruction after the swap of ``classify``."""
    arch = machine.arch.name
    end = {"amd64": len(SWAP[arch]) - 2, "arm64": 24, "riscv64": 18}[arch]
    code = ELSEWHERE[arch] if differs else SWAP[arch][:end]
    distance = machine.symbol("classify").address + end - machine.symbol("collatz").address
    overwrite(machine, "collatz", code + jump(arch, distance - len(code)))
    lock = a_lock(machine, kind)
    breakpoints = Breakpoints(machine, path=path, records=True)
    breakpoints.add_static(0, types(machine))
    breakpoints.enable()
    for name in ("collatz", "classify", "collatz", "collatz", "classify", "classify"):
        machine.write_u64(lock + 16, 0)
        assert Caller(machine).call(machine.symbol(name).address, [lock, THREAD, 0], name) == 0
    breakpoints.disable()
    assert [one.registers[0] for one in breakpoints.firings()] == [lock] * 6
