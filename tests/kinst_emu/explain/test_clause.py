"""Tests that narrated clauses have the same effects as clauses in the native executor."""

import itertools
import json
from dataclasses import replace

import pytest

from images import catalog
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.steps.firing_steps import steps
from kinst_emu.explain.steps.step import Table
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run

CALL = 'strlen("hello")'
SP = {"amd64": 20, "arm64": 31, "riscv64": 2}
CLAUSE = ("/regs[%d] != 0 && n < 100/ { n++; trace(regs[%d]); this->x = n * 3; "
          'printf("%%d", this->x); @[probefunc] = sum(n); }')


def clause(arch):
    return CLAUSE % (SP[arch], SP[arch])


def told(arch, offset=0, **more):
    return explain(catalog.find(f"teaching/{arch}"),
                   Asked(f"strlen:{offset}", CALL, clause=clause(arch), **more))


@pytest.mark.parametrize("arch", ARCHES)
def test_a_narrated_clause_records_the_same_as_the_native_executor(arch):
    offset = {"amd64": 16, "arm64": 4, "riscv64": 14}[arch]
    done = run("kdtrace", "-k", f"teaching/{arch}", "-q", "--json", "-n",
               f"kinst::strlen:{offset} {clause(arch)}", "-c", CALL)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    fired = [row for row in rows if "actions" in row]
    assert len(fired) == 6
    for hit in (1, 4):
        narration = told(arch, offset, hit=hit).firing.narration
        (left,) = narration.left
        assert left["actions"] == fired[hit - 1]["actions"]
        (aggregation,) = narration.aggregated
        assert aggregation["rows"] == [{"keys": ["strlen"], "value": hit * (hit + 1) // 2}]


def test_each_bytecode_instruction_is_narrated_with_its_effect():
    firing = told("arm64").firing
    found = firing.narration.instructions
    for one, following in itertools.pairwise(found):
        assert one.after == following.before and one.following == following.place
    calls = [one for one in found if one.text.startswith("call ") and "pc" not in one.text]
    assert calls and all(f"returns {one.after[0]:#x}" in one.effect() or "+" in one.effect()
                         for one in calls)
    assert any(": branch taken" in one.effect() for one in found)
    assert any(one.effect().startswith("writes ") for one in found)


def test_a_changed_register_in_the_narration_changes_the_step():
    explained = told("riscv64")
    firing = explained.firing

    def step(changed):
        return next(s for s in steps(changed, [firing.instruction], explained.words)
                    if s.name == "clause")

    at = next(i for i, one in enumerate(firing.narration.instructions)
              if one.text.startswith("r0 = "))
    one = firing.narration.instructions[at]
    other = replace(one, after=(one.after[0] ^ 1, *one.after[1:]))
    instructions = list(firing.narration.instructions)
    instructions[at] = other
    changed = replace(firing, narration=replace(firing.narration, instructions=instructions))
    assert step(changed) != step(firing)
    changed = replace(firing, narration=replace(firing.narration, left=[{"x": 1}]))
    assert step(changed) != step(firing)


def test_a_false_predicate_ends_the_clause_and_a_fault_is_reported():
    image = catalog.find("teaching/arm64")
    asked = Asked("strlen:0", CALL, clause="/regs[0] == 1/ { trace(1); }")
    narration = explain(image, asked).firing.narration
    assert not narration.left and narration.instructions
    found = explain(image, replace(asked, clause="{ trace(*(int *)8); }"))
    assert any("invalid address" in str(row.get("error")) for row in found.firing.narration.left)
    (step,) = (step for step in found.steps if step.name == "clause")
    assert any(isinstance(part, Table) for part in step.parts)


@pytest.mark.parametrize(("text", "said"), [
    ("{ trace(", "does not compile"), ("{ trace(nothing); }", "nothing"),
    ("{ } kinst::strlen:4 { }", "-n"), ("{ } BEGIN { }", "-n"),
    ("{ } fbt::strlen:entry { }", "-n")])
def test_an_invalid_clause_is_refused(text, said):
    refused(run("kinst", "explain", "-k", "teaching/arm64", "strlen:0", "-c", CALL, "-n", text),
            said)


def test_branches_of_a_clause_and_several_clauses_are_narrated():
    firing = explain(catalog.find("teaching/arm64"), Asked("strlen:4", CALL, clause=(
        "{ if (regs[8] == 0) { trace(1); } else { trace(2); } } "
        "kinst:kernel:strlen:4 { trace(3); }"))).firing
    values = [action["value"] for row in firing.narration.left for action in row["actions"]]
    assert values == [1, 3]


def test_nothing_is_narrated_after_exit():
    asked = Asked("strlen:4", CALL, clause="{ @a = count(); exit(3); }")
    narrations = [explain(catalog.find("teaching/arm64"), replace(asked, hit=hit)).firing.narration
                  for hit in (1, 2)]
    assert narrations[0].instructions and not narrations[1].instructions
    assert "exit()" in str(narrations[1].left)


def test_a_helper_fault_is_reported_with_a_line_of_the_clause():
    image = catalog.find("teaching/arm64")
    asked = Asked("strlen:4", CALL, clause="{ trace(*(int *)0);\n trace(1); }")
    firing = explain(image, asked).firing
    found = firing.narration.instructions
    assert any("faults and ends the clause" in one.effect() for one in found)
    assert {one.line for one in found} <= {0, 1}
    refused(run("kinst", "explain", "-k", "teaching/arm64", "strlen:0", "-c", CALL, "-n",
                "{ trace(nothing); }"), "line 1:")


def test_a_truncated_narration_is_marked_as_truncated():
    clause = "{ " + "@ = quantize(regs[0]); " * 500 + "}"
    explained = explain(catalog.find("teaching/arm64"), Asked("strlen:4", CALL, clause=clause))
    narration = explained.firing.narration
    assert len(narration.instructions) < narration.executed
    (step,) = (step for step in explained.steps if step.name == "clause")
    assert f"{narration.executed} instructions" in step.parts[0]
    assert f"the first {len(narration.instructions)}" in step.parts[0]
