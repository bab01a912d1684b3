"""Tests of probes for locks on the teaching kernels, with locks that the tests make up.

The tests overwrite ``describe``, ``classify`` and ``collatz`` with code of a kernel that swaps the
word of a lock, and calls ``note_letters`` if that fails.  Kinds of locks use members of the
teaching kernel's structures: ``struct command`` has three words.
"""

import struct
from types import SimpleNamespace

import pytest

from dtrace.debug.kernel_types import kernel_types
from emu.arch.architectures import ARCHITECTURES
from emu.elf.symbols import Symbol
from emu.guest.guest import GuestProbes, LockKind, LockMembers, LockPath, LockProbes
from emu.guest.static_probe import Argument, StaticProbe
from emu.guests.registry import FREEBSD
from emu.host.errors import KinstError
from emu.machine.call import Caller
from emu.machine.machine import Until
from kinst.code.reader import new_reader
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.lock_swaps import LockSwaps
from kinst.probes.probed_code import ProbeError
from kinst.relocation.trap import TRAPS
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
    """Return a machine whose functions acquire and release a lock.

    ``classify`` acquires it, or calls ``audit``, which tries again; ``refund`` releases it, or
    calls ``note_letters``, which does not.
    """
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
    booted.guest = booted.guest._replace(
        probes=GuestProbes(declared=lambda image, memory: pair, locks=locks),
        threads=booted.guest.threads._replace(locks=LockMembers(
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


def test_a_thread_may_take_another_lock_between_the_two_sites(machine, kind):
    """As an interrupt handler does, which runs as the same thread, on the same stack."""
    arch, cpu = machine.arch.name, machine.arch
    end = {"amd64": len(SWAP[arch]) - 2, "arm64": 24, "riscv64": 18}[arch]
    join = machine.symbol("classify").address + end
    collatz, back = machine.symbol("collatz").address, machine.symbol("refund").address
    overwrite(machine, "collatz", ELSEWHERE[arch] + jump(
        arch, join - collatz - len(ELSEWHERE[arch])))
    lock = a_lock(machine, kind)
    other = lock + 64
    machine.write(other, struct.pack("<3Q", kind << 24, 0, 0))
    breakpoints = Breakpoints(machine, records=True)
    breakpoints.add_static(0, types(machine))
    breakpoints.enable()
    sp = machine.sp - 0x400 & ~15
    machine.write_register(cpu.sp, sp)
    if cpu.link is None:
        machine.write_u64(sp, back)
    else:
        machine.write_register(cpu.link, back)
    for name, value in zip(cpu.arguments, (lock, THREAD, 0), strict=False):
        machine.write_register(name, value)
    machine.pc = collatz
    machine.run(Until(addresses=[join], instructions=machine.instructions + 100))
    assert machine.pc == join
    kept = machine.registers()
    machine.write_register(cpu.sp, sp - 0x200)
    assert Caller(machine).call(machine.symbol("classify").address, [other, THREAD, 0], "classify"
                                ) == 0
    for name, value in kept.items():
        if name != cpu.pc and not (arch == "riscv64" and name == "zero"):
            machine.write_register(name, value)
    machine.pc = join
    machine.run(Until(addresses=[back], instructions=machine.instructions + 100))
    breakpoints.disable()
    assert [one.registers[0] for one in breakpoints.firings()] == [lock, other]


def test_a_swap_before_an_instruction_without_breakpoints_is_reported(machine, kind):
    refused = {"amd64": "f4", "arm64": "400082d4", "riscv64": "73001000"}  # HLT; HVC; EBREAK
    arch = machine.arch.name
    end = {"amd64": len(SWAP[arch]) - 2, "arm64": 24, "riscv64": 18}[arch]
    code = SWAP[arch][:end] + bytes.fromhex(refused[arch])
    collatz = machine.symbol("collatz").address
    overwrite(machine, "collatz", code + jump(
        arch, machine.symbol("audit").address - collatz - len(code)))
    lock = a_lock(machine, kind)
    breakpoints = Breakpoints(machine, records=True)
    assert breakpoints.add_static(0, types(machine)) == breakpoints.add_static(0, types(machine))
    assert breakpoints.incomplete(0) == [
        "locks:kernel:none:acquire: some locks are not seen: no breakpoint can be set at "
        f"{machine.image.symbols.where(collatz + end)}"]
    assert breakpoints.add_static(1, types(machine)) and breakpoints.incomplete(1) == []
    breakpoints.enable()
    Caller(machine).call(machine.symbol("classify").address, [lock, THREAD, 0], "classify")
    breakpoints.disable()
    assert len(list(breakpoints.firings())) == 1


@pytest.mark.parametrize("wrong, why", [
    ({"enabled": "no_such_variable"}, "'no_such_variable' was not found; "
     "'audit' does not swap the word of a lock itself"),
    ({"paths": (LockPath("no_such_function", "acquire", 1, True),)},
     "'no_such_function' was not found"),
    ({"paths": (LockPath("adler32", "acquire", 1, True),)},
     "'adler32' does not swap the word of a lock itself")])
def test_what_the_search_lacks_is_reported(machine, kind, wrong, why):
    probes = machine.guest.probes
    machine.guest = machine.guest._replace(probes=probes._replace(
        locks=probes.locks._replace(**wrong)))
    breakpoints = Breakpoints(machine)
    breakpoints.add_static(0, types(machine))
    assert breakpoints.incomplete(0) == [
        f"locks:kernel:none:acquire: some locks are not seen: {why}"]


def test_probes_are_listed_without_types_and_without_a_search(machine, kind):
    breakpoints = Breakpoints(machine)
    listed = [breakpoints.list_static(n) for n in (0, 1, 0)]
    assert [breakpoints.names(n)[3] for n in listed] == ["acquire", "release", "acquire"]
    assert listed[0] == listed[2]
    assert breakpoints.add_static(0, types(machine)) not in listed


class Symbols:
    """Symbols of functions that overlap each other."""

    def __init__(self, size):
        self.size = size

    def find(self, name):
        return Symbol(name, 8, 1, 0)

    def function_at(self, address):
        return Symbol("f", address - self.size + 1, self.size, 0)

    def gap_at(self, address):
        return address

    def gap_end(self, address):
        return address + 1


@pytest.mark.parametrize("size, error", [(1 << 16, "functions overlap"), (1 << 40, None)])
def test_damaged_symbols_cost_little(size, error):
    arch = ARCHITECTURES["amd64"]
    trap, frame = TRAPS["amd64"], FREEBSD["amd64"].traps.trap_frame
    reader, _templates = new_reader(arch, trap, frame)
    swap = SWAP["amd64"][3:] + bytes(16)
    image = SimpleNamespace(symbols=Symbols(size), path="kernel")
    locks = LockProbes("locks", "x", (LockPath("audit", "acquire", 1, True),))
    finder = LockSwaps(arch, trap, image, locks, reader.step, reader.lengths)
    search = finder.found((swap + bytes(4096)) * 64, 0x10000, {})
    if error is None:
        assert list(search) == []
    else:
        with pytest.raises(KinstError, match=error):
            list(search)
