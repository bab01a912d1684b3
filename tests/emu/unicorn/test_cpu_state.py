"""Tests that snapshots contain the whole CPU state, compared with Unicorn's raw context."""

import struct

import pytest
import unicorn
from unicorn.x86_const import UC_X86_REG_IDTR

from emu.machine.machine import StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn.engine_probe import context_bytes
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from tests.conftest import MEMORY
from tests.emu.unicorn.test_cuts import placed
from tests.kinst.verify.test_upstream_mistakes import assemble, words

HEADER = 0x28  # size of the part of struct uc_context before the CPU state

# Differences allowed between a machine that continued and one restored from a file: offset in the
# context of Unicorn 2.1.4, size, reason.  QEMU 5.0.1 declares the fields in target/i386/cpu.h,
# target/arm/cpu.h and target/riscv/cpu.h.
MAY_DIFFER = {
    "amd64": [
        (0xB0, 8, "eflags: every reader masks the arithmetic bits, which are kept in cc_*"),
        (0xB8, 28, "cc_dst, cc_src, cc_src2, cc_op: flags that are computed on demand"),
        (0x330, 8, "fp_status: exception flags that the model collects but never exposes"),
        (0x348, 16, "mmx_status, sse_status: like fp_status"),
        (0x1530, 16, "error_code, exception_is_int, exception_next_eip: of the last exception;"
                     " the next exception sets them before they are read"),
        (0xB60, 64, "xmm_t0, mmx_t0: used only within an instruction"),
        (0x15E0, 8, "retaddr: host address, used only within an instruction"),
    ],
    "arm64": [
        (0x230, 16, "CF, VF, NF, ZF: different values can represent the same flag"),
        (0x280, 32, "sp_el: unused copies while the level's own stack pointer is in use"),
        (0x830, 16, "c15_ccnt: host clock; the board answers reads of PMCCNTR"),
        (0xBF8, 24, "exception: of the last exception; the next exception sets it"),
        (0x2EF0, 40, "fp_status: visible through FPSR, which is compared by name"),
    ],
    "riscv64": [
        (0x248, 8, "badaddr: of the last exception; the next exception sets it"),
    ],
}


def differences(arch, one, other):
    """Return the offsets of unexpected differences between two CPU contexts."""
    allowed = set()
    for offset, size, _why in MAY_DIFFER[arch]:
        allowed.update(range(offset, offset + size))
    return [hex(i) for i in range(HEADER, len(one)) if one[i] != other[i] and i not in allowed]


def through_a_file(machine, path):
    snapshot.save(machine, path)
    return snapshot.restore(path, machine.image)


def test_the_list_of_differences_is_for_the_installed_unicorn():
    assert unicorn.__version__ == "2.1.4", "determine the offsets of MAY_DIFFER again"


@pytest.mark.parametrize("instructions", [50, 3000, 7001])
def test_a_restored_machine_has_the_raw_context_of_the_original(
    image, arch, tmp_path, instructions
):
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    machine.run(Until(instructions=instructions))
    other = through_a_file(machine, tmp_path / "s")
    assert differences(arch, context_bytes(machine.uc), context_bytes(other.uc)) == []
    assert machine.registers() == other.registers()
    for one in (machine, other):
        one.run(Until(instructions=instructions + 3000))
    assert differences(arch, context_bytes(machine.uc), context_bytes(other.uc)) == []
    assert machine.digest() == other.digest()


def test_snapshots_include_registers_that_the_kernels_do_not_use(image, arch, tmp_path):
    """A snapshot preserves unusual values in the registers that it saves by name."""
    machine = boots.booted(image, MEMORY)
    if arch == "arm64":
        for name in ("pmselr_el0", "pmuserenr_el0", "dbgbvr2_el1", "dbgwvr3_el1", "oslsr_el1",
                     "par_el1", "csselr_el1", "tpidrro_el0"):
            machine.write_register(name, 2)
    elif arch == "amd64":
        for name in ("star", "sysenter_eip", "dr1", "cr8"):
            machine.write_register(name, 6)
    else:
        for name in ("sscratch", "stval"):
            machine.write_register(name, 6)
    other = through_a_file(machine, tmp_path / "s")
    assert differences(arch, context_bytes(machine.uc), context_bytes(other.uc)) == []


MONITORS = {
    # ldxr x2, [x0]; add; stxr w0, x1, [x0]; ret
    "arm64": (words(0xC85F7C02, 0x91000442, 0xC8007C01, 0xD65F03C0), 4),
    # lr.d a2, (a0); addi; sc.d a0, a1, (a0); ret
    "riscv64": (words(0x1005362F, 0x00160613, 0x18B5352F, 0x00008067), 4),
}


@pytest.mark.parametrize("arch", ["arm64", "riscv64"])
@pytest.mark.parametrize("way", ["memory", "file"])
def test_a_snapshot_between_a_load_exclusive_and_its_store_keeps_the_monitor(
    image, arch, tmp_path, way
):
    machine = boots.booted(image, MEMORY)
    code, first = MONITORS[arch]
    address = placed(machine, code)
    word = address + 0x1000
    back = machine.guest.entry_address(image)
    for break_it in (False, True):
        machine.write_u64(word, 5)
        machine.arch.prepare_call(machine, (word, 7), back)
        machine.pc = address
        machine.run(Until(addresses=[address + first]))
        if way == "memory":
            kept, other = machine.snapshot(), machine
            machine.run(Until(addresses=[back]))
            ends = [(machine.read_register(machine.arch.result), machine.read_u64(word))]
            machine.restore(kept)
        else:
            other, ends = through_a_file(machine, tmp_path / "s"), []
        for one in {id(m): m for m in (machine, other)}.values():
            if break_it:
                one.write_u64(word, 6)
            one.run(Until(addresses=[back]))
            ends.append((one.read_register(one.arch.result), one.read_u64(word)))
        expected = (1, 6) if break_it else (0, 7)
        assert ends[1:] == [expected] * (len(ends) - 1)
        assert ends[0] == ((0, 7) if way == "memory" else expected)


SHADOWED = {
    # mov ss and sti delay interrupts by one instruction (the interrupt shadow)
    "sti": "cli; mov ecx, 2000; l: sti; inc eax; cli; dec ecx; jnz l; sti; ret",
    "mov ss": "mov ecx, 2000; mov edx, ss; l: mov ss, edx; inc eax; dec ecx; jnz l; ret",
}


@pytest.mark.parametrize("code", SHADOWED.values(), ids=SHADOWED)
def test_an_interrupt_shadow_survives_stops_and_snapshots(code, tmp_path):
    """Clock interrupts are taken at the same instructions whether or not the run is stopped."""
    image = catalog.find("teaching/amd64")
    ends = []
    for every in (None, 1, 2, 3):
        machine = boots.booted(image, MEMORY)
        machine.write_register("rflags", machine.read_register("rflags") | 1 << 9)
        address = placed(machine, assemble("amd64", code))
        back = machine.guest.entry_address(image)
        machine.run(Until(time=machine.now + 9_997_000 - machine.now % 10_000_000))
        machine.arch.prepare_call(machine, (), back)
        machine.pc = address
        until = Until(addresses=[back])
        step = 0
        while every is not None:
            stop = machine.run(Until(addresses=[back], instructions=machine.instructions + every))
            if stop.pc == back:
                break
            step += 1
            if step % 500 == 0:
                machine = through_a_file(machine, tmp_path / "s")
        if every is None:
            machine.run(until)
        ends.append((machine.instructions, machine.now, machine.digest()))
    assert len(set(ends)) == 1


def test_the_interrupt_shadow_is_part_of_the_state(tmp_path):
    machine = boots.booted(catalog.find("teaching/amd64"), MEMORY)
    address = placed(machine, assemble("amd64", "sti; nop; nop; hlt"))
    machine.pc = address
    said = []
    for _ in range(3):
        said.append(machine.state().cpu["interrupt_shadow"])
        machine.step()
        other = through_a_file(machine, tmp_path / "s")
        shadows = [one.cpu.in_shadow()  # type: ignore[attr-defined]
                   for one in (other, machine)]
        assert shadows[0] == shadows[1]
    assert said == [False, True, False]


def test_a_waiting_cpu_still_waits_after_a_restore(image, arch, tmp_path):
    """A machine that is saved while its CPU waits for the clock still waits after a restore."""
    machine = boots.booted(image, MEMORY)
    for _ in range(100_000):
        at = machine.now
        machine.run(Until(time=machine.now + 20_000))
        if machine.state().waiting:
            break
    assert machine.state().waiting, (at, machine.now)
    other = through_a_file(machine, tmp_path / "s")
    end = machine.now + 30_000_000
    for one in (machine, other):
        one.run(Until(time=end))
    assert machine.digest() == other.digest()


@pytest.mark.parametrize("what", ["stack", "descriptors"])
def test_exception_delivery_outside_ram_ends_the_run(what):
    """Guest page tables may map addresses that have no RAM."""
    machine = boots.booted(catalog.find("teaching/amd64"), 64 << 20)
    nowhere = 0xFFFFFFFF80000000 | 512 << 20
    at = machine.symbol("strlen").address
    machine.write(at, b"\x0f\x0b")  # ud2
    if what == "stack":
        machine.write_register("rsp", nowhere)
    else:
        machine.engine.write_bytes(UC_X86_REG_IDTR, struct.pack(
            "<H6xQII", 0, nowhere, 0xFFF, 0))
    machine.pc = at
    stop = machine.run(Until(instructions=machine.instructions + 10))
    assert stop.reason is StopReason.UNHANDLED and "is not RAM" in stop.detail, stop


def test_a_return_to_aarch32_is_reported_and_a_snapshot_undoes_it():
    """The CPU model enters AArch32 on the exception return; only a snapshot can undo this."""
    machine = boots.booted(catalog.find("teaching/arm64"), 64 << 20)
    before, kept = machine.digest(), machine.snapshot()
    machine.write(machine.pc, words(0xD69F03E0))  # eret
    machine.write_register("spsr_el1", 0x10)  # AArch32 User mode
    machine.write_register("elr_el1", machine.symbol("strlen").address)
    stop = machine.run(Until(instructions=machine.instructions + 100_000))
    assert stop.reason is StopReason.UNHANDLED and "AArch32" in stop.detail, stop
    machine.restore(kept)
    assert machine.digest() == before
    end = machine.instructions + 5000
    machine.type(b"strings\r")
    assert machine.run(Until(instructions=end)).reason is StopReason.INSTRUCTIONS


def test_a_selector_of_an_earlier_descriptor_table_is_restored():
    """A CPU that starts has loaded the GDTR, and for a moment still uses selectors from before."""
    machine = boots.booted(catalog.find("teaching/amd64"), MEMORY)
    before = machine.snapshot()
    before.state.cpu["ss"] = 0x7FF8
    machine.restore(before)
    assert machine.read_register("ss") == 0x7FF8
    assert machine.snapshot().state.cpu == before.state.cpu
    before.state.cpu["cs"] = 0x7FF8
    with pytest.raises(ValueError, match="descriptor of cs cannot be read"):
        machine.restore(before)
