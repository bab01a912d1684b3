import pytest

from emu.machine.call import Caller, CallError
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt
from kinst.providers.kinst_provider import create as kinst
from tests.kinst.providers.test_provider import run


def trace(machine, makes, name, arguments):
    seen = []
    breakpoints = Breakpoints(machine, lambda probe, state: seen.append((probe, state.get(
        machine.arch.arguments[0]), state.get(machine.arch.result))))
    for make in makes:
        make(breakpoints)
    breakpoints.enable()
    value = run(machine, name, arguments)
    breakpoints.disable()
    return seen, value


def test_entry_fires_with_the_argument_and_return_with_the_value(booted):
    seen, value = trace(booted, [lambda b: fbt.create(b, "collatz", "")], "collatz", [27])
    assert [(p.provider, p.function, p.name) for p, _, _ in seen] == [
        ("fbt", "collatz", "entry"), ("fbt", "collatz", "return")]
    assert seen[0][1] == 27 and seen[1][2] == value == 111


def test_entries_and_returns_of_a_recursion_balance(booted):
    seen, value = trace(booted, [lambda b: fbt.create(b, "fibonacci", "")], "fibonacci", [6])
    names = [p.name for p, _, _ in seen]
    assert value == 8 and names.count("entry") == names.count("return") > 5
    depth = 0
    for name in names:
        depth += 1 if name == "entry" else -1
        assert depth >= 0


STEPS_INTO_TAIL = 40  # number of instructions after which the call has left tail_even
TAILS = ("tail_even", "tail_odd", "refund", "audit")


@pytest.mark.parametrize("argument", [7, 12, 0, 9])
def test_a_tail_call_reports_the_callee_result_innermost_first(booted, argument):
    makes = [lambda b, name=name: fbt.create(b, name, "") for name in TAILS]
    seen, value = trace(booted, makes, "tail_even", [argument])
    entered = [p.function for p, _, _ in seen if p.name == "entry"]
    returned = [p.function for p, _, _ in seen if p.name == "return"]
    assert entered[0] == "tail_even" and returned == entered[::-1]
    assert [p.name for p, _, _ in seen] == ["entry"] * len(entered) + ["return"] * len(entered)
    assert {result for p, _, result in seen if p.name == "return"} == {value}


@pytest.mark.parametrize("path", ["guest", "direct", "double", "python"])
def test_tail_call_returns_are_the_same_on_every_trap_path(booted, path):
    seen = []
    breakpoints = Breakpoints(
        booted, lambda probe, state: seen.append((probe.function, probe.name)),
        path="guest" if path == "python" else path, python=path == "python")
    for name in TAILS:
        fbt.create(breakpoints, name, "")
    kept = booted.snapshot()
    plain = run(booted, "tail_even", [7]), booted.digest()
    booted.restore(kept)
    breakpoints.enable()
    value = run(booted, "tail_even", [7])
    breakpoints.disable()
    assert (value, booted.digest()) == plain
    assert [name for name in seen if name[1] == "return"] == [
        (function, "return") for function, name in reversed(seen) if name == "entry"]


def test_a_jump_into_the_middle_of_a_function_is_not_a_return(booted):
    breakpoints = Breakpoints(booted)
    breakpoints._starts = frozenset()  # treat no address as the start of a function
    fbt.create(breakpoints, "tail_even", "")
    found = [breakpoints.probe(n) for n in range(len(breakpoints.probes))]
    assert all(breakpoints.trap.instructions.is_return(p.instruction.code)
               for p in found if p.name == "return")
    assert "where no function begins" in breakpoints.not_followed["tail_even"][0]


def test_restoring_a_snapshot_drops_pending_tail_calls(booted):
    """Stop the run between a tail call and the callee's return, then restore a snapshot."""
    seen = []
    breakpoints = Breakpoints(booted, lambda probe, state: seen.append(probe.name))
    fbt.create(breakpoints, "tail_even", "return")
    breakpoints.enable()
    kept = booted.snapshot()
    with pytest.raises(CallError):
        Caller(booted, limit=STEPS_INTO_TAIL).call(booted.symbol("tail_even").address, [7], "x")
    assert not seen
    booted.restore(kept)
    run(booted, "tail_even", [7])
    breakpoints.disable()
    assert seen == ["return"]


def test_fbt_and_kinst_probes_can_share_an_instruction(booted):
    makes = [lambda b: fbt.create(b, "crc32", "entry"), lambda b: kinst(b, "crc32", "")]
    seen, value = trace(booted, makes, "crc32", [0, "hello", 5])
    assert value == 0x3610A686
    entry = next(i for i, (p, _, _) in enumerate(seen) if p.provider == "fbt")
    neighbours = [p for p, _, _ in seen[max(entry - 1, 0) : entry + 2]]
    same = [p for p in neighbours if p.provider == "kinst"
            and p.instruction == seen[entry][0].instruction]
    assert len(same) == 1
    assert sum(p.provider == "fbt" for p, _, _ in seen) == 1


@pytest.mark.parametrize("name", ["strlen", "classify", "cnputs", "spin_lock", "describe"])
def test_every_call_enters_and_returns_once_and_changes_nothing(booted, name):
    arguments = {"strlen": ["hello"], "classify": [5, 27], "cnputs": ["x"],
                 "spin_lock": [b"\0" * 8], "describe": [2]}[name]
    plain = booted.snapshot()
    value = run(booted, name, arguments)
    untraced = booted.digest()
    booted.restore(plain)
    seen, traced = trace(booted, [lambda b: fbt.create(b, name, "")], name, arguments)
    assert traced == value and booted.digest() == untraced
    assert [p.name for p, _, _ in seen] == ["entry", "return"]


def test_a_name_that_is_neither_entry_nor_return_is_refused(booted):
    with pytest.raises(ProbeError, match="named entry and return, not 'exit'"):
        fbt.create(Breakpoints(booted), "strlen", "exit")
