"""Tests that the teaching kernel has the functions and code shapes that other tests need."""

import subprocess
import sys

import capstone
import pytest
from elftools.elf.elffile import ELFFile

from emu.machine.machine import Until
from images import build_teaching
from tests.conftest import ARCHES


@pytest.fixture
def dwarf(image):
    with image.path.open("rb") as file:
        yield ELFFile(file).get_dwarf_info()


def inlined(dwarf, name):
    copies = []
    for unit in dwarf.iter_CUs():
        for die in unit.iter_DIEs():
            if die.tag == "DW_TAG_inlined_subroutine":
                origin = die.get_DIE_from_attribute("DW_AT_abstract_origin")
                if origin.attributes["DW_AT_name"].value == name.encode():
                    copies.append(die)
    return copies


def test_inline_functions_are_inlined_several_times_and_one_is_split(dwarf):
    assert len(inlined(dwarf, "mix")) >= 3
    charge = inlined(dwarf, "charge")
    assert len(charge) >= 3
    assert any("DW_AT_ranges" in die.attributes for die in charge)


def test_every_teaching_kernel_has_the_functions_that_probes_need(image, arch):
    names = {"dtrace_invop_jump_addr", "cpu_switch", "vpanic", "cngetc"}
    names |= {"amd64": {"Xbpt", "calltrap", "dtrace_invop_calltrap_addr"},
              "arm64": {"handle_el1h_sync", "do_el1h_sync"},
              "riscv64": {"cpu_exception_handler", "do_trap_supervisor"}}[arch]
    for name in names:
        assert image.symbols.find(name) is not None, name


def test_spin_locks_use_atomic_instructions(image, arch):
    engine = {"amd64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
              "arm64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
              "riscv64": (capstone.CS_ARCH_RISCV,
                          capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC)}[arch]
    lock = image.symbols.find("spin_lock")
    code = image.virtual_to_file(lock.address, lock.size)
    text = " ".join(i.mnemonic for i in capstone.Cs(*engine).disasm(code, lock.address))
    for word in {"amd64": ["lock cmpxchg"], "arm64": ["ldaxr", "stxr"],
                 "riscv64": ["lr.w", "sc.w"]}[arch]:
        assert word in text


def test_builds_are_reproducible_and_leave_no_other_files(tmp_path):
    for arch in ARCHES:
        one = build_teaching.build(arch, tmp_path / "one").read_bytes()
        two = build_teaching.build(arch, tmp_path / "two").read_bytes()
        assert one == two
        names = sorted(p.name for p in (tmp_path / "one" / arch).iterdir())
        assert names == ["kernel", "races"]
        assert ((tmp_path / "one" / arch / "races").read_bytes()
                == (tmp_path / "two" / arch / "races").read_bytes())


def test_a_kernel_that_is_idle_for_long_prints_nothing(booted):
    turns = booted.image.symbols.find("worker_turns").address
    booted.write(turns, (3_000_000).to_bytes(8, "little"))
    said = len(booted.console.text)
    booted.run(Until(time=booted.now + 10**9))
    assert int.from_bytes(booted.read(turns, 8), "little") > 3_000_010
    assert booted.console.text[said:] == b""


def test_a_missing_compiler_is_reported_in_one_line(tmp_path):
    result = subprocess.run([sys.executable, "-m", "images.build_teaching"], capture_output=True,
                            text=True, env={"PATH": str(tmp_path)}, check=False)
    assert result.returncode == 1
    assert result.stderr == (
        "images: clang is not installed; on Debian: apt-get install clang lld\n")
