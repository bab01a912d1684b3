"""Tests that every tool accepts all spellings of a code place, including those that tools print."""

import json

import pytest

import kinst_emu
from images import catalog
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run

KERNEL = "teaching/amd64"
CALLS = 'strlen("abc"); account(4); strlen("abcd")'
SPELLINGS = ("strlen+0x4", "strlen+4", "strlen:4", "strlen:0x4", "kernel`strlen+0x4",
             "kinst::strlen:4", "kinst:kernel:strlen:0x4", "kinst::strlen+0x4:")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("places") / "calls.rec"
    assert run("kinst", "record", "-k", KERNEL, "-o", str(path), CALLS).returncode == 0
    return path


@pytest.fixture(scope="module")
def address():
    return catalog.find(KERNEL).symbols.find("strlen").address + 4


def replayed(recording, *options):
    done = run("kinst", "replay", str(recording), *options, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("text", SPELLINGS)
def test_every_tool_accepts_every_spelling_of_a_place(recording, address, text):
    assert json.loads(run("kinst", "line", "-k", KERNEL, text, "--json").stdout) == [
        {"at": "strlen+0x4", "function": "strlen", "source": "./string.c:6"}]
    asked = [row for row in json.loads(run(
        "kinst", "disas", "-k", KERNEL, text, "--json").stdout) if row["asked"]]
    assert [row["address"] for row in asked] == [address]
    explained = run("kinst", "explain", "-k", KERNEL, text, "-c", 'strlen("ab")', "--steps")
    assert "1. The instruction at strlen:4" in explained.stdout
    assert replayed(recording, "--to", text)["pc"] == address
    second = replayed(recording, "--to", f"{text}#2")
    assert second["pc"] == address
    assert replayed(recording, "--origin", f"rax@{text}#2")["instructions"] == second["position"][
        "instructions"]


def test_every_tool_accepts_addresses_and_source_lines(recording, address):
    for text in (f"{address:#x}", "string.c:6"):
        assert run("kinst", "line", "-k", KERNEL, text).stdout.startswith("strlen")
        assert "->" in run("kinst", "disas", "-k", KERNEL, text).stdout
        assert replayed(recording, "--to", text)["pc"] in (address, address - 4)


def test_probes_can_be_placed_at_source_lines_and_hexadecimal_offsets():
    for text in ("kinst::strlen:0x4", "kinst::strlen+0x4:", "kinst::strlen+4:", "kinst::strlen:4"):
        done = run("kdtrace", "-k", KERNEL, "-qn", f'{text} {{ trace(probename); }}', "-c",
                   'strlen("ab")')
        assert done.stdout.startswith("4") and not done.stderr, text
    listed = run("kdtrace", "-k", KERNEL, "-l", "-n", "kinst::lesson.c@18:").stdout.splitlines()[1:]
    lines = run("kinst", "line", "-k", KERNEL, "lesson.c:18").stdout.split()
    assert [":".join(row.split()[3:]) for row in listed] == lines


def test_a_pattern_also_matches_inline_functions():
    for end in ("entry", "return"):
        one, pattern = (run("kdtrace", "-k", KERNEL, "-l", "-n", f"kinst::{name}:{end}").stdout
                        for name in ("charge", "*har?e"))
        assert one.count("\n") > 3 and one == pattern


def test_every_tool_reports_functions_that_are_only_inlined(recording):
    said = "exists only as 5 inline copies"
    for command in (("line", "-k", KERNEL, "charge:0"), ("disas", "-k", KERNEL, "charge"),
                    ("explain", "-k", KERNEL, "charge:0", "-c", "account(4)"),
                    ("call", "-k", KERNEL, "charge(4)"),
                    ("replay", str(recording), "--to", "charge")):
        refused(run("kinst", *command), said)
    refused(run("kdtrace", "-k", KERNEL, "-n", "kinst::charge:0"), said, "dtrace")
    refused(run("kdtrace", "-k", KERNEL, "-n", "fbt::charge:entry"), said, "dtrace")
    refused(run("kdtrace", "-k", KERNEL, "-n", "fbt:tcp*::"), "a function is the third part",
            "dtrace")


def test_replay_stops_at_entry_and_return_of_inline_copies(recording):
    entered = replayed(recording, "--to", "charge:entry")
    left = replayed(recording, "--to", "kinst::charge:return")
    assert entered["at"].startswith("account+") and left["at"].startswith("account+")
    assert entered["position"]["instructions"] < left["position"]["instructions"]


def test_memory_options_accept_the_names_that_the_tools_print(recording):
    for where in ("balance", "balance+0x0", "kernel`balance"):
        (write,) = replayed(recording, "--who-wrote", where)["writes"]
        assert write["by"].startswith("account+") and write["by"].endswith("lesson.c:18")
        links = replayed(recording, "--to", "end", "--origin", where)["links"]
        assert links[0]["pc"] == write["pc"] and links[0]["line"].endswith("lesson.c:18")
    assert not replayed(recording, "--to", "strlen", "--who-wrote", "balance")["writes"]
    refused(run("kinst", "replay", str(recording), "--who-wrote", "curthread"), "struct thread")
    refused(run("kinst", "replay", str(recording), "--to", "end", "--origin", "rax@start"),
            "give only one")


def test_the_python_api_accepts_places_and_addresses(recording, address):
    machine = kinst_emu.open(KERNEL).boot()
    for text in (*SPELLINGS, f"{address:#x}"):
        machine.run(text, instructions=0)
    played = kinst_emu.Recording(str(recording))
    played.go("strlen:0x4")
    assert played.machine.pc == address
    played.go("end")
    (link,) = played.origin("balance")
    assert played.machine.where(link.pc).startswith("account+")


@pytest.mark.parametrize("arch", ARCHES)
def test_replay_stops_where_a_function_with_a_tail_call_returns(arch, tmp_path):
    path, kernel = tmp_path / "tail.rec", f"teaching/{arch}"
    made = run("kinst", "record", "-k", kernel, "-o", str(path), "tail_even(5)")
    result = int(made.stdout.split("=")[1].split()[0])
    there = replayed(path, "--to", "fbt::tail_even:return")
    machine = kinst_emu.Recording(str(path)).machine
    assert there["registers"][machine.emulated.arch.result] == result
    jumped = replayed(path, "--to", "tail_odd")
    # At the tail call, the result register does not hold the result yet.
    assert jumped["registers"][machine.emulated.arch.result] != result
    links = replayed(path, "--to", "fbt::tail_even:return", "--origin",
                     machine.emulated.arch.result)
    assert links["value"] == result
    moments = [moment.registers[machine.emulated.arch.result]
               for moment in kinst_emu.Recording(str(path)).firings("fbt::tail_even:return")]
    assert moments[-1] == result
    refused(run("kinst", "replay", str(path), "--reverse-to", "fbt::tail_even:return"), "tail call")
