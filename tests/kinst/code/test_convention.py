"""Tests of argument locations that are computed from a function's prototype alone."""

import pytest

from dwarf.types import Incomplete, Integer, Member, Parameter, Pointer, Procedure, Structure, Void
from kinst.code.convention import CONVENTIONS, Word, words

LONG = Integer("long", 8, True)


def structure(*offsets, size):
    members = tuple(Member(f"m{at}", 8 * at, None, lambda: LONG) for at in offsets)
    return Structure("struct", "s", size, lambda: members)


RESULTS = {"nothing": Void(), "number": LONG, "pointer": Pointer(lambda: LONG),
           "small": structure(0, 8, size=16), "large": structure(0, 8, 16, size=24),
           "packed": structure(1, size=9), "empty": structure(size=0)}
# Number of argument registers that hold the result's address, keyed by kind of result.
FIRST = {"amd64": {"large": 1, "packed": 1}, "arm64": {}, "riscv64": {"large": 1}}


@pytest.mark.parametrize("arch", FIRST)
@pytest.mark.parametrize("result", RESULTS)
def test_arguments_follow_the_hidden_result_address(arch, result):
    procedure = Procedure((Parameter("a", lambda: LONG), Parameter("b", lambda: LONG)), False,
                          lambda: RESULTS[result])
    convention = CONVENTIONS[arch]
    first = FIRST[arch].get(result, 0)
    assert [one.words for one in words(convention, procedure)] == [
        (Word(convention.registers[first]),), (Word(convention.registers[first + 1]),)]


@pytest.mark.parametrize("arch", FIRST)
def test_a_result_of_unknown_size_makes_argument_locations_unknown(arch):
    procedure = Procedure((Parameter("a", lambda: LONG),), False, lambda: Incomplete("struct", "s"))
    known = words(CONVENTIONS[arch], procedure) != [None]
    assert known == (arch == "arm64")
