"""Tests of what differs between releases and configurations of the FreeBSD kernel."""

from types import SimpleNamespace

import pytest

from dtrace.stacks.threads import structure
from dwarf.types import Integer, Member, Structure
from emu.arch.architectures import ARCHITECTURES
from emu.elf.image import load_image
from emu.elf.symbols import STT_GNU_IFUNC
from emu.guest.guest import GuestProbes
from emu.guest.static_probe import StaticProbe, StaticProbeError
from emu.guests.registry import FREEBSD
from emu.host.errors import KinstError
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers.provider import Wanted
from kinst.providers.sdt import Sdt
from kinst_emu.cli.boot_words import with_cpus
from kinst_emu.explore.threads import StartError, _address
from tests.conftest import ARCHES
from tests.elfwriter import Elf


def kernel(tmp_path, arch, *names):
    path = tmp_path / "kernel"
    path.write_bytes(Elf(arch, symbols=[(name, 0x1000, 1, 1) for name in names]).build())
    return load_image(path)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_kernel_without_dtrace_hooks_has_no_seam_even_if_the_variable_exists(arch, tmp_path):
    traps = FREEBSD[arch].traps
    assert traps.seam_of(kernel(tmp_path, arch, "start", traps.seam)) is None
    assert traps.seam_of(kernel(tmp_path, arch, traps.hooks)) is None
    found = traps.seam_of(kernel(tmp_path, arch, traps.hooks, traps.seam))
    assert found is not None and found.name == traps.seam


def test_the_number_of_the_signal_bit_depends_on_the_release():
    members = FREEBSD["amd64"].programs.signals
    assert [members.bit(version) for version in (1_403_000, 1_500_068, 1_600_000, None)] == [
        14, 15, 15, 15]


@pytest.mark.parametrize("arch", ARCHES)
def test_a_kernel_for_one_processor_refuses_more(arch, tmp_path):
    image = kernel(tmp_path, arch, "start")
    assert with_cpus(image, 1) is image
    with pytest.raises(KinstError, match="built without options SMP"):
        with_cpus(image, 2)
    assert with_cpus(kernel(tmp_path, arch, "cpu_mp_start"), 2).options.cpus == 2


@pytest.mark.parametrize("tcr, address, refused", [
    (2 << 30 | 16 << 16 | 16, 1 << 63, False), (1 << 30 | 16 << 16 | 16, 1 << 63, True),
    (3 << 30 | 16 << 16 | 16, 1 << 63, True), (1 << 30 | 16 << 16 | 16, 0x1000, False),
    (1 << 14 | 16 << 16 | 16, 0x1000, True), (2 << 14 | 16 << 16 | 16, 0x1000, True),
])
def test_page_sizes_that_are_not_supported_are_an_error(tcr, address, refused):
    registers = {"sctlr_el1": 1, "tcr_el1": tcr, "ttbr0_el1": 0, "ttbr1_el1": 0}
    cpu = SimpleNamespace(read_register=registers.get, read_physical=lambda at, size: bytes(size))
    if refused:
        with pytest.raises(KinstError, match="16 or 64 KiB"):
            ARCHITECTURES["arm64"].walk(cpu, address)
    else:
        assert ARCHITECTURES["arm64"].walk(cpu, address) is None


def test_system_call_probes_remain_if_the_static_probes_cannot_be_read(fresh):
    def refuse(image, memory):
        raise StaticProbeError("a static probe has 88 bytes instead of 112")

    call = StaticProbe("syscall", "freebsd", "getpid", "entry", (), ())
    fresh.guest = fresh.guest._replace(probes=GuestProbes(
        declared=refuse, calls=lambda image, memory: [call]))
    probes = Breakpoints(fresh)
    assert probes.declared == [call] == probes.declared and len(probes.unreadable) == 1
    for provider in ("sdt", "proc"):
        with pytest.raises(ProbeError, match=f"{provider}:::: a static probe has 88 bytes"):
            Sdt().create(probes, Wanted(f"{provider}:::", "", "", False, None, "", provider))


def test_a_function_that_the_kernel_chooses_at_boot_is_resolved(tmp_path):
    path = tmp_path / "kernel"
    path.write_bytes(Elf(symbols=[("sched_add", 0x1000, 1, STT_GNU_IFUNC),
                                  ("sched_lock", 0x1000, 1, 2)]).build())
    machine = SimpleNamespace(image=load_image(path))
    caller = SimpleNamespace(call=lambda address, arguments, name: address + 0x234)
    assert _address(machine, "sched_add", caller) == 0x1234
    assert _address(machine, "sched_lock", caller) == 0x1000
    with pytest.raises(StartError, match="the kernel has no sched_none"):
        _address(machine, "sched_none", caller)


def test_a_structure_is_chosen_by_its_members():
    number = Integer("int", 4, True)
    kinds = [Structure("struct", "td_sched", 8, lambda name=name: (
        Member(name, 0, None, lambda: number),)) for name in ("ts_pctcpu", "ts_cpu")]
    types = SimpleNamespace(named=lambda name: kinds)
    assert structure(types, "struct td_sched", ("ts_cpu",)) is kinds[1]
    assert structure(types, "struct td_sched") is kinds[0]
    assert structure(types, "struct td_sched", ("ts_cpu", "ts_flags")) is None
