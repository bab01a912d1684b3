"""Orders of calls on GENERIC kernels: what is known to go wrong does, what is right does not, and a
lock that is taken out of a function is missed."""

import io
import os
from pathlib import Path

import capstone
import pytest
from elftools.elf.elffile import ELFFile

from images import catalog
from kinst_emu.exploring import explore
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.test_commands import run

SET_ZF = b"\x39\xc0"  # cmp eax, eax
TWICE = {
    "uifind": ("", "uifind(77)"), "alloc_unr": ("u = new_unrhdr(1, 100, 0)", "alloc_unr(u)"),
    "alloc_unr_specific": ("u = new_unrhdr(1, 100, 0)", "alloc_unr_specific(u, 5)"),
    "free_unr": ("u = new_unrhdr(1, 100, 0); alloc_unr(u); alloc_unr(u); alloc_unr(u)",
                 "free_unr(u, 1)", "free_unr(u, 2)"),
    "loginclass_find": ("", 'loginclass_find("a")'),
    "loginclass_free": ('l = loginclass_find("q"); m = loginclass_find("r")',
                        "loginclass_free(l)", "loginclass_free(m)"),
    "osd_register": ("", "osd_register(0, 0, 0)"),
    "osd_deregister": ("b = osd_register(0, 0, 0)", "osd_deregister(0, b)",
                       "osd_register(0, 0, 0)"),
    "hhook_head_get": ("", "hhook_head_get(9, 7)", "hhook_head_register(9, 8, 0, 1)"),
    "if_alloc_domain": ("", "if_alloc(6)"),
    "devctl_queue": ("", 'devctl_notify("a", "b", "c", 0)', 'devctl_notify("d", "e", "f", 0)'),
    "uifree": ("u = uifind(81)", "uifree(u)", "uifind(81)"),
}


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return real_kernel(request.param)


def without_locks(image, function, directory):
    """A copy of the kernel's file in which ``lock cmpxchg`` of a function always succeeds, and
    changes nothing; its debug data is the kernel's."""
    raw, symbol = bytearray(Path(image.path).read_bytes()), image.symbols.find(function)
    segment = next(s for s in ELFFile(io.BytesIO(bytes(raw))).iter_segments()
                   if s["p_type"] == "PT_LOAD"
                   and s["p_vaddr"] <= symbol.address < s["p_vaddr"] + s["p_filesz"])
    code, taken = image.virtual_to_file(symbol.address, symbol.size), 0
    for one in capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm(code, symbol.address):
        if one.mnemonic == "lock cmpxchg":
            at = segment["p_offset"] + one.address - segment["p_vaddr"]
            raw[at : at + one.size] = SET_ZF + b"\x90" * (one.size - len(SET_ZF))
            taken += 1
    assert taken >= 2, "one takes the lock, one lets it go"
    (directory / "kernel").write_bytes(raw)
    debug = image.path.with_name("kernel.debug")
    if debug.exists():
        os.symlink(debug, directory / "kernel.debug")
    return catalog.find(str(directory / "kernel"))


def runs_of(function):
    setup, *runs = TWICE[function]
    return setup, runs * 2 if len(runs) == 1 else runs


@pytest.mark.parametrize("function", TWICE)
def test_a_lock_that_is_taken_out_is_missed_and_one_that_is_there_is_not(function, tmp_path):
    image = real_kernel("amd64")
    setup, runs = runs_of(function)
    assert explore(image, *runs, setup=setup, limit=600).findings == []
    found = explore(without_locks(image, function, tmp_path), *runs, setup=setup, limit=600)
    assert found.findings and found.results, found


def test_two_that_register_one_hook_both_succeed_in_one_order_and_in_no_serial_one(kernel):
    """docs/races.md"""
    call = "hhook_head_register(9, 5, 0, 1)"
    found = explore(kernel, call, call)
    assert found.results == {(0, 17), (17, 0)}
    assert [(one.kind, one.preemptions) for one in found.findings] == [("result", 1)]
    again = explore(kernel, call, call, schedule=found.findings[0].schedule)
    assert [one.kind for one in again.findings] == ["result"]


@pytest.mark.parametrize("runs", [('kern_setenv("a_b", "1")', 'kern_unsetenv("a_b")'),
                                  ("uifind(77)", "uifind(77)"), ("if_alloc(6)", "if_alloc(6)")])
def test_calls_that_are_right_give_nothing(kernel, runs):
    found = explore(kernel, *runs, limit=400)
    assert found.findings == [] and found.tried > 10


def test_a_recorded_order_is_played_with_probes(kernel, tmp_path):
    path = tmp_path / "order.rec"
    runs = ("--run", 'kern_setenv("a_b", "1")', "--run", 'kern_unsetenv("a_b")')
    ran = run("kinst", "explore", "-k", str(kernel.path), *runs, "--schedule", "A40 B20 A B",
              "--record", str(path))
    assert ran.returncode == 0 and "nothing goes wrong with it" in ran.stdout
    traced = run("kdtrace", "--replay", str(path), "-qn",
                 'fbt::kern_*env:entry { printf("%d %s\\n", cpu, stringof(arg0)); }')
    assert traced.returncode == 0 and "ended in another state" not in traced.stderr
    assert traced.stdout.split() == ["0", "a_b", "1", "a_b"]
