"""Tests that the native probe core matches the Python reference."""

import pytest
import unicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.arch.architectures import ARCHITECTURES
from emu.guests.registry import FREEBSD
from emu.host.errors import MachineError, SnapshotError
from emu.machine.call import Caller, CallError
from emu.machine.machine import Until
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import boots
from kinst.code.listing import image_code
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.dispatcher import new_dispatcher
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt, kinst_provider
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Refuse, Rewrite
from tests.kinst.providers.test_provider import CALLS, WAYS, run
from tests.kinst.verify.test_upstream_mistakes import (
    assemble,
    call,
    machine_with,
    the_same_on_every_path,
    words,
)


def dispatcher(arch):
    return new_dispatcher(ARCHITECTURES[arch], TRAPS[arch], FREEBSD[arch].traps.trap_frame, None)[0]


def test_the_native_decoder_agrees_with_the_tables(booted):
    breakpoints = Breakpoints(booted)
    for function in booted.image.symbols.functions():
        table = [i for i in breakpoints.instructions(function)
                 if i.verdict != Refuse("is not an instruction")]
        lengths = breakpoints.dispatcher.lengths(breakpoints.code(function))
        assert lengths[: len(table)] == [len(i.code) for i in table], function.name


@settings(max_examples=3000, deadline=None)
@given(st.binary(min_size=15, max_size=15))
def test_amd64_lengths_agree_with_capstone(code):
    length, verdict = TRAPS["amd64"].instructions.classify(code, 0x1000)
    native = dispatcher("amd64").lengths(code)
    assert (native[0] if native else 0) == length, code.hex()
    theirs = ARCHITECTURES["amd64"].instruction_length(code)
    # Capstone decodes UD0, and jumps with an operand-size prefix, differently.
    if theirs not in (0, length):
        assert isinstance(verdict, Refuse) and verdict.reason in (
            "raises an exception", "is a jump with an operand-size prefix"), code.hex()


def test_native_function_boundaries_agree_with_the_tables(booted):
    breakpoints = Breakpoints(booted)
    for function in booted.image.symbols.functions():
        table = breakpoints.instructions(function)
        first = fbt.entry(breakpoints.trap, function, table)
        offset, left, framed, leaving = breakpoints.boundaries(function)
        assert leaving == [i.offset for i in fbt.leaving(breakpoints.trap, function, table)]
        assert offset == (first.offset if first else -1), function.name
        assert left == [i.offset for i in fbt.returns(breakpoints.trap, function, table)]
        assert framed == any(breakpoints.trap.instructions.is_prologue(i.code) for i in table)


def test_trampolines_match_the_architecture_description(booted):
    breakpoints = Breakpoints(booted)
    for function in booted.image.symbols.functions():
        if function.name in ("strlen", "classify", "cnputs", "print_number", "clock_interrupt"):
            kinst_provider.create(breakpoints, function.name, "")
    breakpoints.enable()
    seen = 0
    for probe in breakpoints.probes:
        i = probe.instruction
        known = breakpoints.dispatcher.template(i.address)
        if isinstance(i.verdict, Copy | Rewrite):
            expected, _second = breakpoints.trap.trampoline(
                known[1], i.code, i.verdict, i.address + len(i.code))
            assert booted.read(known[1], len(expected)) == expected
            assert known[1] % 32 == 0
            seen += isinstance(i.verdict, Rewrite) or len(i.code) > 4
        else:
            assert known[1] == 0
    breakpoints.disable()
    assert seen or booted.arch.name == "riscv64"


def test_records_and_callbacks_report_the_same_firings(booted):
    plain = booted.snapshot()
    called = []
    breakpoints = Breakpoints(booted, lambda probe, state: called.append(
        (probe.id, state.get(booted.arch.arguments[0]))))
    fbt.create(breakpoints, "fibonacci", "")
    breakpoints.enable()
    run(booted, "fibonacci", [5])
    breakpoints.disable()
    booted.restore(plain)
    recorded = Breakpoints(booted, records=True)
    fbt.create(recorded, "fibonacci", "")
    recorded.enable()
    run(booted, "fibonacci", [5])
    recorded.disable()
    firings = list(recorded.firings())
    assert [f.probe.id for f in firings] == [number for number, _argument in called]
    times = [f.instructions for f in firings]
    assert times == sorted(times) and len(set(times)) == len(times)
    assert not list(recorded.firings())
    counts = [recorded.dispatcher.probe(n)[4] for n in range(len(recorded.probes))]
    assert sum(counts) == len(firings) == recorded.dispatcher.firings
    entries = [f.registers[0] for f in firings if f.probe.name == "entry"]
    assert entries[0] == 5 and min(entries) in (0, 1)
    assert firings[-1].probe.name == "return"
    assert firings[-1].registers[1] == 5


@pytest.mark.parametrize("name, arguments", CALLS[::3], ids=lambda v: str(v))
def test_per_thread_trampolines_change_nothing(name, arguments):
    machine = machine_with("amd64", "strlen", b"")
    plain = machine.snapshot()
    value = run(machine, name, arguments)
    left = machine.registers(), machine.instructions, bytes(machine.console.text)
    for path in ("guest", "direct"):
        machine.restore(plain)
        breakpoints = Breakpoints(machine, path=path, trampolines="thread")
        kinst_provider.create(breakpoints, name, "")
        breakpoints.enable()
        assert run(machine, name, arguments) == value
        assert breakpoints.dispatcher.firings
        breakpoints.disable()
        # Digests are not compared: reading the thread ID sets an accessed bit in a page table.
        assert (machine.registers(), machine.instructions, bytes(machine.console.text)) == left


@pytest.mark.parametrize("arch", ["arm64", "riscv64"])
def test_per_thread_trampolines_exist_only_on_amd64(arch):
    with pytest.raises(ProbeError, match="supports only --trampolines=probe"):
        Breakpoints(machine_with(arch, "strlen", b""), trampolines="thread")


def test_a_displaced_rep_instruction_can_be_interrupted():
    machine = machine_with("amd64", "strtoul", b"")
    # Run until 1 ms before a tick.
    machine.run(Until(time=machine.now // 10_000_000 * 10_000_000 + 9_000_000))
    machine.write_code(machine.symbol("strtoul").address, assemble(
        "amd64", "push rbp; mov rbp, rsp; mov ecx, 3000000; rep stosb; mov rax, rdi; pop rbp; ret"))
    at = 0xFFFFFFFF80000000 + (24 << 20)  # unused memory
    plain, ticks = machine.snapshot(), machine.symbol("ticks").address
    begin = machine.read_u64(ticks)
    run(machine, "strtoul", [at])
    assert machine.read_u64(ticks) == begin + 1
    machine.restore(plain)
    assert the_same_on_every_path(machine, "strtoul", at) == at + 3_000_000


FAULTING = {
    "amd64": assemble("amd64", "push rbp; mov rbp, rsp; call qword ptr [rdi]; pop rbp; ret"),
    "arm64": words(0xF9400000, 0xD65F03C0),  # ldr x0, [x0]; ret
    "riscv64": words(0x00053503, 0x00008067),  # ld a0, 0(a0); ret
}


def test_a_fault_in_a_displaced_instruction_reports_the_original_address(arch):
    """Compare fault reports and digests; on amd64 the instruction is an emulated call."""
    machine = machine_with(arch, "strtoul", FAULTING[arch])
    plain = machine.snapshot()
    with pytest.raises(CallError) as error:
        call(machine, "strtoul", 0x40_0000_0000)
    console, digest = error.value.console, machine.digest()
    assert str(hex(machine.symbol("strtoul").address)[2:])[:-1].encode() in console + str(
        error.value).encode()
    said = str(error.value)
    for name, way in WAYS.items():
        if arch == "amd64" and name == "python":
            continue  # the Python core leaves faults of emulated instructions to the native core
        machine.restore(plain)
        breakpoints = Breakpoints(machine, **way)
        kinst_provider.create(breakpoints, "strtoul", "")
        breakpoints.enable()
        with pytest.raises(CallError) as error:
            call(machine, "strtoul", 0x40_0000_0000)
        breakpoints.disable()
        assert error.value.console == console and str(error.value) == said
        assert machine.digest() == digest


def test_a_probe_on_the_trap_path_works_only_with_the_direct_path(booted, arch):
    name = {"arm64": "do_el1h_sync", "riscv64": "do_trap_supervisor"}.get(arch)
    if name is None:
        return  # on amd64, no function of known size runs before the breakpoint hook
    plain = booted.snapshot()
    for way, fails in (("guest", True), ("double", True), ("direct", False)):
        booted.restore(plain)
        breakpoints = Breakpoints(booted, path=way)
        kinst_provider.create(breakpoints, name, "", unsafe=True)
        fbt.create(breakpoints, "strlen", "entry")
        breakpoints.enable()
        if fails:
            with pytest.raises(ProbeError, match="--trap-path=direct"):
                run(booted, "strlen", ["hello"])
        else:
            assert run(booted, "strlen", ["hello"]) == 5
        breakpoints.disable()


def test_disabling_probes_keeps_code_that_the_guest_has_changed(booted):
    breakpoints = Breakpoints(booted)
    kinst_provider.create(breakpoints, "strlen", "0")
    breakpoints.enable()
    address = booted.symbol("strlen").address
    booted.write(address, b"\x55\x55\x55\x55")
    breakpoints.disable()
    assert booted.read(address, 4) == b"\x55\x55\x55\x55"


def test_code_changed_after_a_probe_was_created_is_not_patched(booted):
    breakpoints = Breakpoints(booted)
    kinst_provider.create(breakpoints, "strlen", "0")
    booted.write(booted.symbol("strlen").address, b"\x90\x90\x90\x90")
    with pytest.raises(ProbeError, match=r"strlen\+0x0: the code has changed"):
        breakpoints.enable()


def test_removed_probes_neither_fire_nor_patch(booted):
    breakpoints = Breakpoints(booted)
    one, other = (kinst_provider.create(breakpoints, "strlen", "0")[0],
                  fbt.create(breakpoints, "strcmp", "entry")[0])
    places = [booted.symbol(name).address for name in ("strlen", "strcmp")]
    before = [booted.read(at, 16) for at in places]
    breakpoints.dispatcher.remove(one)
    breakpoints.enable()
    patched = [booted.read(at, 16) != code for at, code in zip(places, before, strict=True)]
    run(booted, "strlen", ["x"])
    run(booted, "strcmp", ["x", "y"])
    breakpoints.disable()
    assert patched == [False, True]
    assert [breakpoints.dispatcher.probe(n)[4] for n in (one, other)] == [0, 1]
    with pytest.raises(IndexError):
        breakpoints.dispatcher.remove(99)


@pytest.mark.parametrize("pattern, some, others", [
    ("str*", {"strlen", "strcmp", "strtoul"}, {"memcmp"}),
    ("[ms]*cmp", {"strcmp", "memcmp"}, {"strlen"}), ("fibonacc?", {"fibonacci"}, {"collatz"}),
    ("", {"strlen", "memcmp"}, {"trap", "do_el1h_sync", "do_trap_supervisor"}),
])
def test_patterns_match_like_shell_patterns(booted, pattern, some, others):
    breakpoints = Breakpoints(booted)
    fbt.create(breakpoints, pattern, "entry")
    names = {p.function for p in breakpoints.probes}
    assert some <= names and not others & names


def test_patterns_skip_functions_without_a_frame(booted):
    breakpoints = Breakpoints(booted)
    kinst_provider.create(breakpoints, "*", "")
    patterned = {p.function for p in breakpoints.probes}
    frameless = {f.name for f in booted.image.symbols.functions()
                 if not breakpoints.boundaries(f)[2]}
    assert patterned and not patterned & frameless
    insisting = Breakpoints(booted)
    kinst_provider.create(insisting, "*", "", unsafe=True)
    assert {p.function for p in insisting.probes} >= patterned


def test_trampoline_slots_are_freed_when_probes_are_disabled(booted):
    before = booted.digest()
    for _ in range(3):
        breakpoints = Breakpoints(booted)
        kinst_provider.create(breakpoints, "cnputs", "")
        breakpoints.enable()
        used = breakpoints.dispatcher.slots_used
        breakpoints.disable()
        assert used > breakpoints.dispatcher.slots_used == 2
        assert booted.digest() == before


def test_a_survey_counts_every_instruction_once(image, arch):
    from kinst.code.survey import survey
    functions = list(image.symbols.functions())
    result = survey(ARCHITECTURES[arch], TRAPS[arch], image, functions)
    lengths = [dispatcher(arch).lengths(image_code(image, f))
               for f in {f.address: f for f in functions}.values()]
    endings = result.verdicts["refuse: is not an instruction"]
    assert 0 <= sum(result.verdicts.values()) - sum(map(len, lengths)) <= endings
    good, every = result.probeable
    assert 0.9 * every < good <= every


def test_an_earlier_snapshot_cannot_be_restored_while_probes_are_enabled(booted, tmp_path):
    before = booted.snapshot()
    breakpoints = Breakpoints(booted)
    kinst_provider.create(breakpoints, "strlen", "")
    breakpoints.enable()
    with pytest.raises(MachineError, match="cannot restore the snapshot"):
        booted.restore(before)
    with pytest.raises(SnapshotError, match="probes are enabled"):
        snapshot.save(booted, tmp_path / "s.kinst")
    within = booted.snapshot()
    booted.restore(within)
    assert run(booted, "strlen", ["abc"]) == 3 and breakpoints.dispatcher.firings
    breakpoints.disable()
    booted.restore(before)


@pytest.mark.parametrize("path", PATHS)
def test_the_trap_path_decides_how_often_the_seam_is_reached(booted, arch, path):
    probes = Breakpoints(booted, path=path)
    kinst_provider.create(probes, "strlen", "")
    copied = next(p for p in probes.probes if isinstance(p.instruction.verdict, Copy | Rewrite))
    probes.remove_all()
    kinst_provider.create(probes, "strlen", str(copied.instruction.offset))
    probes.enable()
    seam, seen = probes._trampolines.seam, []
    hook = booted.uc.hook_add(
        unicorn.UC_HOOK_CODE, lambda *_: seen.append(1), begin=seam, end=seam)
    booted.forget_translations()
    run(booted, "strlen", [b"four"])
    booted.uc.hook_del(hook)
    times = {"direct": 0, "guest": 1, "double": 1 if arch == "amd64" else 2}[path]
    assert probes.dispatcher.firings
    assert len(seen) == times * probes.dispatcher.firings


def test_two_sets_of_probes_cannot_be_enabled_at_once(booted):
    one, other = Breakpoints(booted), Breakpoints(booted)
    kinst_provider.create(one, "strlen", "")
    kinst_provider.create(other, "strcmp", "")
    one.enable()
    within = booted.snapshot()
    for again in (one, other):
        with pytest.raises(ProbeError, match="other probes are enabled"):
            again.enable()
    assert run(booted, "strlen", ["abc"]) == 3 and one.dispatcher.firings
    one.disable()
    other.enable()
    with pytest.raises(MachineError, match="cannot restore the snapshot"):
        booted.restore(within)
    other.disable()


@pytest.mark.parametrize("path", PATHS)
def test_a_failing_callback_stops_the_guest_before_the_instruction(booted, path):
    def fail(probe, state):
        raise KeyError(probe.name)

    breakpoints = Breakpoints(booted, fail, path=path)
    at = breakpoints.instructions(booted.symbol("strlen"))[1]
    kinst_provider.create(breakpoints, "strlen", str(at.offset))
    breakpoints.enable()
    plain = booted.snapshot()
    with pytest.raises(KeyError):
        run(booted, "strlen", ["abc"])
    assert booted.pc == at.address
    booted.restore(plain)
    breakpoints.fire = lambda probe, state: None
    assert run(booted, "strlen", ["abc"]) == 3
    breakpoints.disable()


@pytest.mark.parametrize("change", [
    lambda b: b.disable(), lambda b: b.dispatcher.clear(), lambda b: b.dispatcher.remove(0),
    lambda b: kinst_provider.create(b, "strcmp", ""),
])
def test_probes_cannot_be_changed_while_one_fires(booted, change):
    breakpoints = Breakpoints(booted)
    breakpoints.fire = lambda probe, state: change(breakpoints)
    kinst_provider.create(breakpoints, "strlen", "0")
    breakpoints.enable()
    plain = booted.snapshot()
    with pytest.raises((RuntimeError, ProbeError), match="while one fires"):
        run(booted, "strlen", ["abc"])
    booted.restore(plain)
    breakpoints.fire = lambda probe, state: None
    assert run(booted, "strlen", ["abc"]) == 3
    breakpoints.disable()


@pytest.mark.parametrize("options", [{"path": "direct"}, {"records": True},
                                     {"trampolines": "thread"}])
def test_the_python_core_supports_only_the_double_path(options):
    with pytest.raises(ProbeError, match="cannot be combined with path=DIRECT"):
        Breakpoints(machine_with("amd64", "strlen", b""), python=True, **options)


def test_waiting_for_an_interrupt_is_the_same_with_probes(booted, image):
    """The idle function is probed; on riscv64, WFI does not end a block of the CPU model."""
    function = booted.symbol("machine_idle")
    machine = UnicornMachine(image, 64 << 20)
    machine.boot()
    boots.at_start(machine)
    start = machine.snapshot()
    boots.boot_to_prompt(machine)
    digest = machine.digest()
    for i in Breakpoints(machine).instructions(function):
        if isinstance(i.verdict, Refuse):
            continue
        for path in PATHS:
            machine.restore(start)
            breakpoints = Breakpoints(machine, path=path)
            kinst_provider.create(breakpoints, "machine_idle", str(i.offset))
            breakpoints.enable()
            boots.boot_to_prompt(machine)
            breakpoints.disable()
            assert breakpoints.dispatcher.firings
            assert machine.digest() == digest, (i.offset, path)


NOWHERE = 0x40_0000_0000
CALLS_OF_IT = {
    "amd64": assemble("amd64", "push rbp; mov rbp, rsp; call rdi; pop rbp; ret"),
    "arm64": words(0xAA1E03E9, 0xD63F0000, 0xD61F0120),  # mov x9, x30; blr x0; br x9
    "riscv64": words(0x00008293, 0x000500E7, 0x00028067),  # mv t0, ra; jalr a0; jr t0
}


@pytest.mark.parametrize("target", [NOWHERE, 0x10])
def test_a_call_to_an_invalid_address_fails_alike_with_probes(arch, target):
    machine = machine_with(arch, "strtoul", CALLS_OF_IT[arch])
    plain = machine.snapshot()
    ends = []
    for way in (None, {"path": "guest"}, {"path": "direct"}):
        machine.restore(plain)
        breakpoints = Breakpoints(machine, **way) if way else None
        if breakpoints:
            kinst_provider.create(breakpoints, "strtoul", "")
            breakpoints.enable()
        with pytest.raises(CallError) as error:
            call(machine, "strtoul", target)
        if breakpoints:
            breakpoints.disable()
        ends.append((str(error.value), error.value.console, machine.instructions,
                     machine.registers()))
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize("behind", [1, 5, 6, 7])
def test_an_instruction_limit_stops_in_the_same_state_with_probes(booted, behind):
    """Stop after a given number of instructions while every instruction is probed."""
    plain = booted.snapshot()

    def stop():
        machine = booted
        machine.arch.prepare_call(machine, (27,), machine.guest.entry_address(machine.image))
        machine.pc = machine.symbol("collatz").address
        machine.run(Until(instructions=machine.instructions + behind))
        return machine.digest(), machine.now

    unprobed = stop()
    for path in PATHS:
        booted.restore(plain)
        breakpoints = Breakpoints(booted, path=path)
        kinst_provider.create(breakpoints, "collatz", "")
        breakpoints.enable()
        stop()
        breakpoints.disable()
        assert (booted.digest(), booted.now) == unprobed


@pytest.mark.parametrize("arch", ["arm64"], indirect=True)
def test_a_probe_at_the_end_of_a_cpu_model_page_changes_nothing(booted):
    """The probed instruction is the last one of a 1 KiB page, the page size of the CPU model."""
    address = (booted.symbol("strtoul").address + 1023) & ~1023
    # add x0, x0, 1 (four times) around the boundary, then ret
    booted.write_code(address - 8, words(*[0x91000400] * 4, 0xD65F03C0))
    owner = booted.image.symbols.function_at(address - 4)
    plain = booted.snapshot()
    value = Caller(booted).call(address - 8, [5], "it")
    digest = booted.digest()
    booted.restore(plain)
    breakpoints = Breakpoints(booted, path="direct")
    kinst_provider.create(breakpoints, owner.name, str(address - 4 - owner.address), unsafe=True)
    breakpoints.enable()
    assert Caller(booted).call(address - 8, [5], "it") == value == 9
    breakpoints.disable()
    assert breakpoints.dispatcher.firings == 1
    assert booted.digest() == digest


def test_probes_on_a_stack_at_the_edge_of_memory_keep_cr2():
    machine = machine_with("amd64", "fibonacci", assemble("amd64", "push rbp; nop; pop rbp; ret"))
    machine.write_register("cr2", 0x1234)
    breakpoints = Breakpoints(machine)
    kinst_provider.create(breakpoints, "fibonacci", "")
    breakpoints.enable()
    machine.write_register("rsp", 0xFFFFFFFF80000000 + 600)
    call_at = machine.symbol("fibonacci").address
    machine.write_u64(machine.sp, machine.guest.entry_address(machine.image))
    machine.pc = call_at
    machine.run(Until(addresses=[machine.guest.entry_address(machine.image)]))
    breakpoints.disable()
    assert breakpoints.dispatcher.firings == 4
    assert machine.read_register("cr2") == 0x1234


@pytest.mark.parametrize("arch", sorted(TRAPS))
def test_programs_of_one_process_and_name_have_one_number(arch):
    native = dispatcher(arch)
    numbers = [native.add_program(process, name, executed) for process, name, executed in (
        (17, b"sh", True), (17, b"ls", True), (18, b"sh", True), (17, b"sh", False))]
    assert numbers == [1, 2, 3, 1]
