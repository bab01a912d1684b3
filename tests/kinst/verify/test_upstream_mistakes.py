"""Tests that kinst-emu's relocation engine makes none of the mistakes of FreeBSD's kinst.

The laboratory tests single instructions: in place, by the verdict, and displaced by the native
dispatcher.  The other tests overwrite functions of the teaching kernel.
"""

import keystone
import pytest

from emu.machine.call import Caller, CallError
from images import boots, catalog
from kinst.code.listing import instructions
from kinst.probes.breakpoints import Breakpoints
from kinst.providers import kinst_provider
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Refuse
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst.verify.laboratory.laboratory import Laboratory
from tests.conftest import MEMORY
from tests.kinst.providers.test_provider import WAYS

ASSEMBLERS = {
    "amd64": (keystone.KS_ARCH_X86, keystone.KS_MODE_64),
    "arm64": (keystone.KS_ARCH_ARM64, keystone.KS_MODE_LITTLE_ENDIAN),
}


def assemble(arch, text, address=0):
    return bytes(keystone.Ks(*ASSEMBLERS[arch]).asm(text, address)[0])


def words(*codes):
    """Encode RISC-V or Arm instructions of four bytes each."""
    return b"".join(code.to_bytes(4, "little") for code in codes)


def same(arch, *codes, states=24):
    """Assert that the laboratory refuses none of the encodings and finds no difference."""
    lab = Laboratory(LABORATORIES[arch](), TRAPS[arch], 5)
    for code in codes:
        verdict, mismatch = lab.test(code, states)
        assert verdict in ("copy", "rewrite", "emulate"), (code.hex(), verdict)
        assert mismatch is None, (code.hex(), mismatch.differences())


def machine_with(arch, function, code):
    """Return a booted teaching kernel with ``code`` at the start of a function."""
    machine = boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)
    symbol = machine.symbol(function)
    assert len(code) <= symbol.size
    if code:
        machine.write_code(symbol.address, code)
    return machine


def call(machine, function, *arguments):
    return Caller(machine, 10_000_000).call(machine.symbol(function).address, arguments, function)


def the_same_on_every_path(machine, function, *arguments, offset=""):
    """Return the result of a call after checking that probes on any trap path change nothing."""
    plain = machine.snapshot()
    value = call(machine, function, *arguments)
    untraced = machine.digest()
    for way in WAYS.values():
        machine.restore(plain)
        fired = []
        breakpoints = Breakpoints(machine, lambda probe, state, f=fired: f.append(probe), **way)
        kinst_provider.create(breakpoints, function, offset)
        breakpoints.enable()
        assert call(machine, function, *arguments) == value
        breakpoints.disable()
        assert fired
        assert machine.digest() == untraced
    machine.restore(plain)
    return value


# -- amd64 -------------------------------------------------------------------------------------


def test_amd64_sib_index_4_means_no_index():
    same("amd64", *(assemble("amd64", text) for text in (
        "call qword ptr [rsp]", "call qword ptr [rsp + 8]", "jmp qword ptr [r12 + 0x40]",
    )))


def test_amd64_base_5_with_mod_0_has_a_four_byte_displacement():
    same("amd64", bytes.fromhex("ff14c508000050"), bytes.fromhex("ff142500000050"),
         bytes.fromhex("ff24f508000050"))


def test_amd64_rbp_and_r13_work_as_bases_with_a_displacement():
    same("amd64", *(assemble("amd64", text) for text in (
        "call qword ptr [rbp + 8]", "call qword ptr [r13 - 8]", "call qword ptr [rbp + rax*8 + 8]",
        "call qword ptr [r13 + rcx*2 + 0x1000]",
    )))


def test_amd64_segment_overrides_are_part_of_the_address():
    same("amd64", *(assemble("amd64", text) for text in (
        "call qword ptr gs:[rax]", "call qword ptr fs:[rbx + 8]", "jmp qword ptr gs:[rip + 16]",
    )))


def test_amd64_displaced_loops_reach_their_original_target():
    same("amd64", *(bytes.fromhex(text) for text in
                    ("e210", "e110", "e010", "e2f0", "67e210", "e310", "67e310")))


def test_amd64_xbegin_is_not_copied():
    verdict = TRAPS["amd64"].instructions.classify(bytes.fromhex("c7f810000000"), 0x1000)[1]
    assert isinstance(verdict, Refuse) and "relative" in verdict.reason


FAULT = "push rbp; mov rbp, rsp; mov rax, qword ptr [rdi]; pop rbp; ret"


def fault_with(trampolines, path):
    """Probe a faulting instruction and its fault handler, and return the fault's console output."""
    machine = machine_with("amd64", "fibonacci", assemble("amd64", FAULT))
    breakpoints = Breakpoints(machine, path=path, trampolines=trampolines)
    for function in ("fibonacci", "cnputs", "print_number", "panic"):
        kinst_provider.create(breakpoints, function, "")
    breakpoints.enable()
    with pytest.raises(CallError) as error:
        call(machine, "fibonacci", 0x100_0000_0000)
    assert breakpoints.dispatcher.firings > 10
    breakpoints.disable()
    return error.value.console


@pytest.mark.parametrize("path", ["guest", "direct"])
def test_amd64_probes_in_the_fault_handler_keep_the_faulting_trampoline(path):
    machine = machine_with("amd64", "fibonacci", assemble("amd64", FAULT))
    with pytest.raises(CallError) as error:
        call(machine, "fibonacci", 0x100_0000_0000)
    at = machine.symbol("fibonacci").address + 4
    assert f"trap 12 at {at:x}".encode() in error.value.console
    assert fault_with("probe", path) == error.value.console
    # As in FreeBSD, probes in the handler overwrite a per-thread trampoline that has faulted.
    assert fault_with("thread", path) != error.value.console


def test_amd64_sti_keeps_its_interrupt_shadow():
    code = assemble("amd64", "cli; push rbp; nop; sti; hlt; pop rbp; ret")
    machine = machine_with("amd64", "fibonacci", code)
    the_same_on_every_path(machine, "fibonacci")
    refused = [i for i in instructions(TRAPS["amd64"], code, machine.symbol("fibonacci"))
               if isinstance(i.verdict, Refuse)]
    assert [i.code for i in refused] == [b"\xfb", b"\xf4"]


# -- arm64 -------------------------------------------------------------------------------------


def test_arm64_tbz_tests_bits_31_and_above():
    same("arm64", *(assemble("arm64", f"{name} x3, #{bit}, #16")
                    for name in ("tbz", "tbnz") for bit in (0, 30, 31, 32, 33, 62, 63)))


def test_arm64_cbz_tests_only_its_operand_width():
    same("arm64", *(assemble("arm64", f"{name} {register}, #16")
                    for name in ("cbz", "cbnz") for register in ("w4", "x4")), states=60)


def test_arm64_registers_30_and_31_are_decoded_correctly():
    same("arm64", *(assemble("arm64", text) for text in (
        "cbz x30, #16", "cbz xzr, #16", "cbnz wzr, #16", "tbnz xzr, #3, #16", "tbz x30, #40, #16",
        "br x30", "blr x30", "ret x30", "ret", "adr x30, #16", "adrp xzr, #0x1000",
    )))


def test_arm64_displaced_literal_loads_read_the_original_address():
    same("arm64", words(0x18000080), words(0x58000080), words(0x98000080), words(0x1C000080),
         words(0x5C000080), words(0x9C000080), words(0xD8000080), words(0x5800009F))


def test_arm64_returns_and_calls_keep_the_interrupt_masks():
    code = words(0xAA1E03E2, 0x10000061, 0xD63F0020, 0x14000003, 0x91000400, 0xD65F03C0,
                 0xAA0203FE, 0xD65F03C0)
    # mov x2, x30; adr x1, 16; blr x1; b 24; (16:) add x0, x0, 1; ret; (24:) mov x30, x2; ret
    machine = machine_with("arm64", "strtoul", code)
    states = []
    breakpoints = Breakpoints(machine, lambda probe, state: states.append(
        (probe.instruction.offset, state.get("pstate") & 0x3C0)))
    plain = machine.snapshot()
    kinst_provider.create(breakpoints, "strtoul", "")
    breakpoints.enable()
    before = machine.read_register("pstate") & 0x3C0
    assert call(machine, "strtoul", 41) == 42
    breakpoints.disable()
    executed = [offset for offset, _mask in states if offset < len(code)]
    assert executed == [0, 4, 8, 16, 20, 12, 24, 28]
    assert {mask for _offset, mask in states} == {before}
    machine.restore(plain)
    assert the_same_on_every_path(machine, "strtoul", 41) == 42


def test_arm64_casp_is_not_a_load_exclusive():
    trap = TRAPS["arm64"]
    for code in (words(0x48207C82), words(0x08207C82), words(0x48607C82)):
        assert isinstance(trap.instructions.classify(code, 0)[1], Copy)
        assert not trap.instructions.starts_exclusive(code)
        assert not trap.instructions.ends_exclusive(code)


# -- riscv64 -----------------------------------------------------------------------------------


def test_riscv64_auipc_to_x0_writes_nothing():
    """AUIPC to x0 is refused, and the memory before a trap frame stays unchanged."""
    machine = machine_with("riscv64", "strtoul", words(0x00001017, 0x00008067))
    assert the_same_on_every_path(machine, "strtoul", 7) == 7
    _length, verdict = TRAPS["riscv64"].instructions.classify(words(0x00001017), 0)
    assert isinstance(verdict, Refuse)


@pytest.mark.parametrize("register", [2, 3, 4], ids=["sp", "gp", "tp"])
def test_riscv64_writes_to_sp_gp_and_tp_take_effect(register):
    same("riscv64", words(0x17 | register << 7 | 1 << 12), words(0x6F | register << 7))
    code = words(
        0x00000293 | register << 15,  # mv t0, REGISTER
        0x00001017 | register << 7,  # auipc REGISTER, 1
        0x00000513 | register << 15,  # mv a0, REGISTER
        0x00028013 | register << 7,  # mv REGISTER, t0
        0x00008067,  # ret
    )
    machine = machine_with("riscv64", "strtoul", code)
    at = machine.symbol("strtoul").address + 4
    assert the_same_on_every_path(machine, "strtoul", offset="4") == at + 0x1000


# -- all architectures -------------------------------------------------------------------------


def test_adding_all_probes_after_one_completes_the_function(booted):
    breakpoints = Breakpoints(booted)
    one = kinst_provider.create(breakpoints, "strlen", "0")
    later = breakpoints.instructions(booted.symbol("strlen"))[3].offset
    one += kinst_provider.create(breakpoints, "strlen", str(later))
    every = kinst_provider.create(breakpoints, "strlen", "")
    assert set(one) < set(every)
    offsets = [breakpoints.probe(n).instruction.offset for n in every]
    assert offsets == [i.offset for i in breakpoints.instructions(booted.symbol("strlen"))
                       if not isinstance(i.verdict, Refuse)]


def test_all_functions_with_the_same_name_are_probed(booted):
    symbols = booted.image.symbols
    first, other = booted.symbol("strlen"), booted.symbol("strcmp")
    named = symbols.named
    symbols.named = lambda name: [first, other] if name == "strlen" else named(name)
    try:
        breakpoints = Breakpoints(booted)
        kinst_provider.create(breakpoints, "strlen", "0")
    finally:
        del symbols.named
    assert [p.instruction.address for p in breakpoints.probes] == [first.address, other.address]
