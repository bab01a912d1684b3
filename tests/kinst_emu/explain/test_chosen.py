"""Tests that an entry or return probe is explained at the instruction where it fires."""

import json
import re

import pytest

import kinst_emu
from dtrace.descriptions.code_places import code_place
from images import catalog
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_front import refused, run

CALL = "tail_even(3)"
PROBES = {"kinst::mix:entry": CALL, "kinst::mix:return": CALL, "fbt::account:entry": "account(3)",
          "fbt::fibonacci:return": "fibonacci(5)"}


def fired(arch, probe, call):
    """Return FUNCTION:OFFSET for each firing that kdtrace prints."""
    offset = "arg0" if probe.startswith("fbt") and probe.endswith("return") else "0"
    result = run("kdtrace", "-k", f"teaching/{arch}", "-qn",
                 probe + ' { printf("%s %s %d\\n", probefunc, probename, ' + offset + "); }",
                 "-c", call)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if len(line.split()) == 3]
    begin = (code_place(catalog.find(f"teaching/{arch}"), probe).offset
             if probe.startswith("fbt") and probe.endswith("entry") else None)
    return [f"{function}:{name if name.isdecimal() else number if begin is None else begin}"
            for function, name, number in rows]


@pytest.mark.parametrize("probe, call", PROBES.items())
@pytest.mark.parametrize("arch", ARCHES)
def test_a_firing_is_explained_at_the_instruction_that_kdtrace_reports(arch, probe, call):
    places = fired(arch, probe, call)
    assert places
    for hit in (len(places),):
        shown = run("kinst", "explain", "-k", f"teaching/{arch}", probe, "-c", call, "--hit",
                    str(hit), "--steps")
        assert shown.returncode == 0, shown.stderr
        assert f"The instruction at {places[hit - 1]}\n" in shown.stdout
        text = " ".join(shown.stdout.split())
        ordinal = {1: "1st", 2: "2nd", 3: "3rd"}.get(hit, f"{hit}th")
        assert re.search(rf"Here {re.escape(probe)}\b.* fires for the {ordinal} time", text)


def test_all_spellings_of_a_probe_are_explained_alike():
    spellings = ("mix:entry", "kinst::mix:entry", "kinst:kernel:mix:entry", ":kernel:mix:entry")
    texts = [run("kinst", "explain", "-k", "teaching/amd64", text, "-c", CALL, "--steps").stdout
             for text in spellings]
    bare = [re.sub(r"Here \S+ ", "Here ", " ".join(text.split())) for text in texts]
    assert bare[0] and len(set(bare)) == 1


def test_what_if_applies_to_the_chosen_firing():
    shown = run("kinst", "explain", "-k", "teaching/amd64", "kinst::mix:entry", "-c", CALL, "--hit",
                "2", "--what-if", "share", "--steps")
    assert shown.returncode == 0, shown.stderr
    assert "What if" in shown.stdout


@pytest.mark.parametrize("arch", ARCHES)
def test_a_tail_call_return_is_explained_up_to_its_firing(arch):
    shown = run("kinst", "explain", "-k", f"teaching/{arch}", "tail_even:return", "-c",
                "tail_even(7)", "--json")
    assert shown.returncode == 0, shown.stderr
    explanation = json.loads(shown.stdout)
    firing, (*_, after, step) = explanation["firing"], explanation["steps"]
    assert (after["name"], step["name"]) == ("after", "returned")
    assert (after["row"], step["row"]) == (len(firing["rows"]) - 2, len(firing["rows"]) - 1)

    machine, counts = kinst_emu.open(f"teaching/{arch}").boot(), []
    with machine.probe(f"kinst::tail_even:{firing['offset']}",
                       lambda fired: counts.append(fired.instructions)), machine.probe(
                           "fbt::tail_even:return",
                           lambda fired: counts.append(fired.instructions)):
        result = machine.call("tail_even", 7)
    registers = firing["rows"][-1]["registers"]
    assert registers[machine.emulated.arch.result] == result
    assert f"results, is {result:#x}." in step["parts"][1]
    assert [firing["between"] + 1] == [counts[1] - counts[0]]


@pytest.mark.parametrize("arch", ARCHES)
def test_a_tail_call_return_has_a_result_and_the_callers_stack(arch):
    machine, seen = kinst_emu.open(f"teaching/{arch}").boot(), []
    with machine.probe("fbt::tail_even:return", lambda fired: seen.append(
            (fired.returned, fired.result, fired.stack()))), machine.probe(
                "kinst::tail_even:0", lambda fired: seen.append((fired.returned, fired.stack()))):
        result = machine.call("tail_even", 7)
    (entered, stack), returned = seen
    assert not entered and len(stack) == 1 and "tail_even" in stack[0]
    assert returned == (True, result, [])  # no kernel function has called tail_even


def test_explaining_a_clause_requires_a_breakpoint():
    refused(run("kinst", "explain", "-k", "teaching/amd64", "tail_even:return", "-c",
                "tail_even(7)", "-n", "{ trace(arg1); }"), "fires without a breakpoint")


@pytest.mark.parametrize("probe, says", [
    ("mix:entry", "fires"), ("nothing:entry", "nothing"), ("kinst::nothing:return", "nothing"),
    ("io:::start", "give a kinst or fbt probe of a function"), ("fbt::mix:entry", "mix")])
def test_a_probe_that_cannot_be_explained_is_refused_with_one_line(probe, says):
    refused(run("kinst", "explain", "-k", "teaching/amd64", probe, "-c", "account(1)", "--hit",
                "99"), says)
