"""Tests of giving values to the guest's variables."""

import pytest

from dtrace.calls.places import Place, Places
from dtrace.calls.settings import set_all, split
from dwarf.types import Integer
from emu.host.errors import KinstError
from images import boots, catalog
from tests.conftest import ARCHES, MEMORY
from tests.kinst_emu.commands.test_commands import refused, run


@pytest.fixture
def machine(arch):
    return boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)


def read(machine, text):
    place = Places(machine).find(text)
    return int.from_bytes(machine.read(place.address, place.size), "little")


def test_a_variable_gets_a_value_that_the_kernel_then_reads(machine):
    before = read(machine, "ticks")
    (done,) = set_all(machine, ["ticks = 0x10"])
    assert (done.before, done.after, read(machine, "ticks")) == (before, 16, 16)
    assert str(done) == f"ticks: {before} -> 16"


def test_all_values_are_checked_before_the_first_is_set(machine):
    before = read(machine, "ticks")
    with pytest.raises(KinstError, match="'many' is not a number"):
        set_all(machine, ["ticks=7", "ticks=many"])
    assert read(machine, "ticks") == before


@pytest.mark.parametrize(("text", "says"), [
    ("ticks", "give a place and a value"), ("=5", "give a place and a value"),
    ("ticks=", "give a place and a value"),
    ("ticks=18446744073709551616", "does not fit"), ("ticks=-9223372036854775809", "does not fit"),
    ("nothing=1", "not a place in memory"), ("ticks=NULL", "'NULL' is not a number"),
    ("0x123456789000=1", "0x123456789000"),
])
def test_what_cannot_be_set_is_an_error_that_quotes_it(machine, text, says):
    with pytest.raises(KinstError, match=says) as error:
        set_all(machine, [text])
    assert len(str(error.value)) < 400


def test_the_place_may_contain_an_equals_sign_only_before_the_value():
    assert split("a->b=3") == ("a->b", "3")
    assert split("a[1] = -2") == ("a[1]", "-2")


@pytest.mark.parametrize("arch", ARCHES)
def test_a_call_is_made_after_the_change_and_its_recording_contains_it(arch, tmp_path):
    path = tmp_path / "call.rec"
    words = ("call", "-k", f"teaching/{arch}", 'strlen("abc")', "--set", "ticks=77")
    done = run("kinst", *words, "--record", str(path))
    assert done.returncode == 0 and 'strlen("abc") = 3' in done.stdout, done
    assert "kinst: set ticks: " in done.stderr and " -> 77" in done.stderr
    again = run("kinst", "replay", str(path), "--json")
    assert again.returncode == 0 and '"same": true' in again.stdout, again
    assert '"problem": ""' in again.stdout


def test_a_branch_needs_a_position_and_a_kernel_with_a_shell(tmp_path):
    path = tmp_path / "call.rec"
    run("kinst", "call", "-k", "teaching/amd64", 'strlen("abc")', "--record", str(path))
    refused(run("kinst", "replay", str(path), "--set", "ticks=1"), "with --to")
    refused(run("kinst", "replay", str(path), "--set", "ticks=1", "--to", "strlen"),
            "cannot be left")
    refused(run("kinst", "replay", str(path), "--set", "ticks=1", "--to", "strlen", "--gdb", "0"),
            "--set: cannot be combined with --gdb")


def test_a_boot_cannot_be_changed_before_it_begins(tmp_path):
    refused(run("kinst", "record", "-k", "teaching/amd64", "boot", "--set", "ticks=1", "-o",
                str(tmp_path / "boot.rec")), "works only with a workload after the boot")


def test_registers_functions_and_unknown_types_are_refused(machine):
    register = machine.arch.arguments[0]
    with pytest.raises(KinstError, match="is a number or a register"):
        set_all(machine, [f"{register}=5"])
    with pytest.raises(KinstError, match="strlen"):
        set_all(machine, ["strlen=0"])


def test_a_bit_field_is_set_without_its_neighbours(monkeypatch, machine):
    symbol = machine.symbol("ticks")
    unsigned = Integer("unsigned int", 4, False)
    place = Place("m->m_type", symbol.address, 4, unsigned, (5, 6))
    monkeypatch.setattr("dtrace.calls.settings.Places.find", lambda self, text: place)
    machine.write(symbol.address, (0xFFFF_FFFF).to_bytes(8, "little"))
    (done,) = set_all(machine, ["m->m_type=3"])
    assert (done.before, done.after) == (63, 3)
    assert machine.read_u64(symbol.address) == 0xFFFF_FFFF & ~(63 << 5) | 3 << 5
    with pytest.raises(KinstError, match="holds 0 to 63"):
        set_all(machine, ["m->m_type=64"])
