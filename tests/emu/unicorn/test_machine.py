import hashlib
import os
import re

import pytest
import unicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emu.host.errors import ImageError, KinstError, MachineError, SnapshotError
from emu.machine.call import Caller, CallError
from emu.machine.machine import StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from tests.conftest import MEMORY

PROMPT = Until(console="teaching> ")


def test_the_teaching_kernel_boots_to_its_prompt(fresh):
    stop = fresh.run(PROMPT)
    assert stop.reason is StopReason.CONSOLE
    assert b"Two threads, work done 15755400384958000753" in fresh.console.text


def test_typed_commands_are_answered(fresh):
    fresh.run(PROMPT)
    fresh.type(b"strings\r")
    fresh.run(PROMPT)
    assert b"5 3610a686" in fresh.console.text


def test_two_boots_are_bit_identical(image):
    digests = []
    for _ in range(2):
        machine = UnicornMachine(image, MEMORY)
        machine.boot()
        machine.run(PROMPT)
        machine.type(b"lesson\r")
        machine.run(PROMPT)
        digests.append((machine.digest(), machine.instructions, machine.now))
    assert digests[0] == digests[1]


def test_running_in_pieces_does_not_change_a_run(image):
    whole, pieces = (UnicornMachine(image, MEMORY) for _ in range(2))
    for machine in (whole, pieces):
        machine.boot()
    whole.run(Until(instructions=9000))
    for limit in (1, 2, 3, 50, 997, 998, 4000, 8999, 9000):
        stop = pieces.run(Until(instructions=limit))
        assert stop.reason is StopReason.INSTRUCTIONS and pieces.instructions == limit
    assert pieces.registers() == whole.registers()
    assert bytes(pieces.console.text) == bytes(whole.console.text)


def test_the_native_instruction_count_matches_a_code_hook(booted):
    """The slow reference is a Unicorn code hook that calls Python for each instruction."""
    machine = booted
    seen = []
    begin = machine.symbol("strtoul")
    hook = machine.uc.hook_add(
        unicorn.UC_HOOK_CODE, lambda _uc, address, size, _d: seen.append(address),
        begin=begin.address, end=begin.address + begin.size - 1)
    machine.engine.flush_translations()
    before = machine.instructions
    caller = Caller(machine)
    text = caller.place(b" -0x1fz\0")
    assert caller.call(begin.address, [text, 0, 0], "strtoul") == (1 << 64) - 0x1F
    machine.uc.hook_del(hook)
    inside = sum(begin.address <= a < begin.address + begin.size for a in seen)
    counted = machine.instructions - before
    # On some architectures, digit_of is inlined into strtoul, so the call executes only strtoul.
    assert inside == counted or inside < counted < 3 * inside
    callees = {s.name for s in machine.image.symbols.functions() if s.name == "digit_of"}
    if not callees:
        assert inside == counted


def test_instruction_counts_of_blocks_match_the_decoder(fresh):
    """Compare the engine's instruction count of each translated block with the decoder's."""
    blocks = set()
    fresh.uc.hook_add(unicorn.UC_HOOK_BLOCK, lambda _uc, at, size, _d: blocks.add((at, size)))
    fresh.run(PROMPT)
    compared = 0
    for address, size in blocks:
        known = fresh.engine.block_count(address, size)
        if known is not None and fresh.translate(address) is not None:
            assert known == len(fresh.arch.split(fresh.read(address, size))), hex(address)
            compared += 1
    # With fixed-length instructions, a block's count is computed from its size and is not stored.
    assert compared > 50 or fresh.cpu.model.fixed_length


def test_a_run_stops_before_an_address_and_continues_from_there(fresh):
    address = fresh.symbol("classify").address
    for _ in range(3):
        stop = fresh.run(Until(addresses=[address]))
        assert stop.reason is StopReason.ADDRESS and fresh.pc == address
    assert fresh.run(PROMPT).reason is StopReason.CONSOLE


def test_stopping_at_addresses_does_not_change_the_run(image):
    plain, stopped = (UnicornMachine(image, MEMORY) for _ in range(2))
    for machine in (plain, stopped):
        machine.boot()
    plain.run(PROMPT)
    address = stopped.symbol("mix" if stopped.image.symbols.find("mix") else "classify").address
    stops = 0
    while (stop := stopped.run(Until(addresses=[address], console="teaching> "))).reason \
            is StopReason.ADDRESS:
        assert stopped.pc == address
        stops += 1
    assert stop.reason is StopReason.CONSOLE and stops > 1
    assert stopped.digest() == plain.digest()


def test_a_run_stops_at_a_virtual_time(fresh):
    stop = fresh.run(Until(time=20_000_000))
    assert stop.reason is StopReason.TIME and 20_000_000 <= fresh.now < 20_100_000


def test_a_panic_ends_the_run_with_its_message(fresh):
    fresh.run(PROMPT)
    fresh.pc = fresh.symbol("panic").address
    text = fresh.sp - 256
    fresh.write(text, b"for a test\0")
    fresh.write_register(fresh.arch.arguments[0], text)
    stop = fresh.run(Until())
    assert stop.reason is StopReason.PANIC and stop.detail == "for a test"


def test_powering_off_ends_the_run(fresh):
    fresh.run(PROMPT)
    fresh.type(b"off\r")
    assert fresh.run(Until()).reason is StopReason.POWER_OFF


def test_a_snapshot_in_memory_restores_the_whole_state(fresh):
    fresh.run(PROMPT)
    kept, digest = fresh.snapshot(), fresh.digest()
    ends = []
    for _ in range(2):
        fresh.type(b"strings\r")
        fresh.run(PROMPT)
        ends.append(fresh.digest())
        fresh.restore(kept)
        assert fresh.digest() == digest
    assert ends[0] == ends[1] != digest


def test_a_snapshot_on_disk_continues_like_the_machine_itself(fresh, tmp_path):
    fresh.run(PROMPT)
    path = tmp_path / "s.kinst"
    snapshot.save(fresh, path)
    other = snapshot.restore(path, fresh.image)
    assert other.digest() == fresh.digest()
    for machine in (fresh, other):
        machine.type(b"lesson\r")
        machine.run(PROMPT)
    assert other.digest() == fresh.digest()
    assert [p.name for p in tmp_path.iterdir()] == ["s.kinst"]


def test_a_snapshot_of_another_image_is_refused(fresh, tmp_path, arch):
    path = tmp_path / "s.kinst"
    snapshot.save(fresh, path)
    other = catalog.find("teaching/arm64" if arch != "arm64" else "teaching/amd64")
    with pytest.raises(SnapshotError, match="another kernel"):
        snapshot.restore(path, other)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    image = catalog.find("teaching/riscv64")
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    machine.run(PROMPT)
    path = tmp_path_factory.mktemp("saved") / "s.kinst"
    snapshot.save(machine, path)
    return image, path.read_bytes()


@settings(max_examples=80, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_snapshot_is_refused_with_one_line(saved, tmp_path, data):
    image, raw = saved
    raw = bytearray(raw)
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()) and len(raw) > snapshot.HEAD.size:  # make the checksum match
        raw[24:56] = hashlib.sha256(raw[snapshot.HEAD.size :]).digest()
    path = tmp_path / "s.kinst"
    path.write_bytes(raw)
    try:
        snapshot.restore(path, image)
    except SnapshotError as error:
        assert "\n" not in str(error)
    except MachineError as error:  # invalid memory size
        assert "\n" not in str(error)


def test_an_unwritable_snapshot_is_reported(fresh, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match="cannot be written"):
        snapshot.save(fresh, tmp_path / "file" / "s.kinst")


@pytest.mark.parametrize("memory", [0, 1, 3 << 20, (64 << 20) + 1, 1 << 60])
def test_an_impossible_memory_size_is_refused(memory):
    with pytest.raises(MachineError, match=rf"cannot have {memory} bytes of memory; use a"):
        UnicornMachine(catalog.find("teaching/arm64"), memory)


def test_a_kernel_that_does_not_fit_is_refused(tmp_path, arch):
    from emu.elf.image import load_image
    from tests.elfwriter import Elf

    path = tmp_path / "big"
    base = 0xFFFFFFFF80200000 if arch == "amd64" else 0x1000
    path.write_bytes(Elf(arch=arch, entry=base, segments=[(base, b"x", 1 << 30)]).build())
    with pytest.raises(ImageError, match="does not fit in 64 MiB of memory"):
        UnicornMachine(load_image(path), MEMORY).boot()


def test_an_unknown_register_is_refused(fresh):
    with pytest.raises(MachineError, match="no register 'r99'"):
        fresh.read_register("r99")


def test_a_guest_fault_is_delivered_to_the_guest_vectors(booted):
    """Execute an undefined instruction, since the riscv64 kernel cannot cause page faults."""
    at = booted.symbol("strlen").address
    booted.write(at, {"amd64": b"\x0f\x0b"}.get(booted.arch.name, bytes(4)))
    with pytest.raises(CallError, match="strlen panicked") as error:
        Caller(booted).call(at, [booted.sp], "strlen")
    assert re.search(rb"at %x\b.*\r\npanic: unexpected" % at, error.value.console)


def test_a_call_that_reads_unmapped_memory_names_the_function(booted):
    caller = Caller(booted)
    with pytest.raises(CallError, match=r"^strlen (panicked|faulted)"):
        caller.call(booted.symbol("strlen").address, [0x7FFF_FFFF_F000], "strlen")


BREAKPOINTS = {"amd64": b"\xcc", "arm64": bytes.fromhex("000020d4"), "riscv64": b"\x73\0\x10\0"}


def test_a_breakpoint_of_the_guest_is_delivered_natively_as_in_python(booted, monkeypatch):
    before, ends, called = booted.snapshot(), [], []
    cpu = type(booted.cpu)
    exception, invalid = cpu.exception, cpu.invalid
    monkeypatch.setattr(cpu, "exception",
                        lambda cpu, vector: called.append(vector) or exception(cpu, vector))
    monkeypatch.setattr(cpu, "invalid", lambda cpu: called.append("invalid") or invalid(cpu))
    # The breakpoint is at the beginning of a block, or behind other instructions of the block.
    at = booted.symbol("adler32").address
    code = booted.read(at, 256)
    begins = [at + sum(map(len, booted.arch.split(code)[:n])) for n in (0, 1, 2, 3)]
    for place in begins:
        for slow in (True, False):
            booted.restore(before)
            booted.write_code(place, BREAKPOINTS[booted.arch.name])
            booted.engine.slow = slow
            called.clear()
            with pytest.raises(CallError, match="panic"):
                Caller(booted).call(at, [booted.sp, 4], "adler32")
            booted.engine.slow = False
            ends.append((booted.instructions, booted.now, booted.digest()))
            vector = {"amd64": 3, "arm64": 7, "riscv64": "invalid"}[booted.arch.name]
            assert (vector in called) == slow, called
        assert ends[-1] == ends[-2]


def test_a_wait_after_a_breakpoint_of_the_guest_is_no_error(booted):
    if booted.arch.name != "riscv64":
        pytest.skip("only on riscv64, a breakpoint is an invalid instruction to the CPU model")
    begin = booted.symbol("strlen").address
    handler = begin + 16 & ~3
    booted.write_code(begin, BREAKPOINTS["riscv64"])
    booted.write_code(handler, bytes.fromhex("13051500" "73005010" "6f000000"))  # addi; wfi; j .
    before, ends = booted.snapshot(), []
    for slow in (True, False):
        booted.restore(before)
        booted.write_register("stvec", handler)
        booted.pc = begin
        booted.engine.slow = slow
        stop = booted.run(Until(instructions=booted.instructions + 5000))
        booted.engine.slow = False
        ends.append((stop.reason, booted.instructions, booted.digest()))
    assert ends[0] == ends[1] and ends[0][0] is StopReason.INSTRUCTIONS


def test_an_unclaimed_breakpoint_panics_the_guest(booted):
    address = booted.symbol("adler32").address
    booted.write_code(address, BREAKPOINTS[booted.arch.name])
    with pytest.raises(CallError, match="panic") as error:
        Caller(booted).call(address, [0, 0], "adler32")
    assert b"panic: unexpected" in error.value.console


def test_a_call_that_never_returns_is_reported(booted):
    with pytest.raises(CallError, match="did not return within 100000 instructions"):
        Caller(booted, limit=100_000).call(booted.symbol("cngetc").address, [], "cngetc")


def test_calls_restore_the_registers(booted):
    before = booted.registers()
    caller = Caller(booted)
    text = caller.place(b"hello\0")
    assert caller.call(booted.symbol("strlen").address, [text], "strlen") == 5
    assert caller.call(booted.symbol("crc32").address, [0, text, 5], "crc32") == 0x3610A686
    assert booted.registers() == before


def test_two_callers_of_a_machine_share_its_argument_memory(booted):
    one, two = Caller(booted), Caller(booted)
    first, second = one.place(b"first\0"), two.place(b"second\0")
    assert first != second and booted.read_string(first) == b"first"
    strlen = booted.symbol("strlen").address
    assert two.call(strlen, [second], "strlen") == 6
    assert one.call(strlen, [first], "strlen") == 5
    with two.passing():
        third = two.place(b"third\0")
    assert one.place(b"again\0") == third
    del one, two
    assert Caller(booted).place(b"new\0") == first


def test_arguments_larger_than_the_stack_need_malloc(booted):
    with pytest.raises(KinstError, match="malloc"):
        Caller(booted).place(bytes(100_000))


def test_functions_of_an_unbooted_image_can_be_called(image):
    machine = boots.unbooted(image, MEMORY)
    caller = Caller(machine)
    text = caller.place(b"123x\0")
    assert caller.call(machine.symbol("strtoul").address, [text, 0, 10], "strtoul") == 123
    assert caller.call(machine.symbol("fibonacci").address, [15], "fibonacci") == 610


def test_a_second_boot_comes_from_the_cache(image, monkeypatch):
    one = boots.booted(image, MEMORY)
    path = boots.snapshot_path(image, MEMORY)
    assert path.exists()
    monkeypatch.setattr(boots, "boot_to_prompt", lambda *_: pytest.fail("a second boot"))
    assert boots.booted(image, MEMORY).digest() == one.digest()


def test_a_damaged_cached_boot_is_replaced(image):
    digest = boots.booted(image, MEMORY).digest()
    path = boots.snapshot_path(image, MEMORY)
    path.write_bytes(path.read_bytes()[:100])
    assert boots.booted(image, MEMORY).digest() == digest
    assert snapshot.restore(path, image).digest() == digest


def test_string_arguments_are_followed_by_zeros(booted):
    """After a string, a function that reads whole words must not see data from an earlier call."""
    caller = Caller(booted)
    low = caller._room.free - 64
    booted.write(low, b"\xaa" * 64)
    address = caller.place(b"abc\0")
    assert booted.read(address, 16) == b"abc" + bytes(13)


def test_calls_do_not_return_to_the_first_byte_of_kernel_code(booted):
    """Unicorn reads the byte before a return address and so sets the accessed bit of that page."""
    code = next(s for s in booted.image.segments if s.executable)
    assert booted.guest.entry_address(booted.image) - 1 >= max(code.virtual, booted.image.entry)


def test_only_the_latest_cached_boots_of_a_kernel_are_kept(image, tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_CACHE", str(tmp_path))
    path = boots.snapshot_path(image, MEMORY)
    kernel = path.name.rpartition("-")[0]
    others = [path.with_name(f"{kernel}-{n:016x}.kinst") for n in range(boots.KEPT + 2)]
    for age, other in enumerate(others):
        other.write_bytes(b"")
        os.utime(other, (1_000_000 - age, 1_000_000 - age))
    elsewhere = path.with_name("amd64-other-512M-0.kinst")
    elsewhere.write_bytes(b"")
    boots.booted(image, MEMORY)
    assert path.exists() and elsewhere.exists()
    assert [other.exists() for other in others] == [True] * (boots.KEPT - 1) + [False] * 3
