"""Tests of control dependence against its definition, on random functions."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dtrace.flow.control import EXIT, ControlFlow
from emu.arch.architectures import ARCHITECTURES
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError

LOW = 0x1000
UNIT = {"amd64": 6, "arm64": 4, "riscv64": 4}  # size in bytes of a unit


def encoded(arch, at, what, target):
    """Return a unit: a branch or jump to a unit, a return, or an instruction that does nothing."""
    distance = target - at
    if arch == "amd64":
        code = {"branch": b"\x0f\x84" + (distance - 6).to_bytes(4, "little", signed=True),
                "jump": b"\xe9" + (distance - 5).to_bytes(4, "little", signed=True),
                "return": b"\xc3", "nothing": b"\x90"}[what]
        return [code] + [b"\x90"] * (6 - len(code))
    if arch == "arm64":
        word = {"branch": 0x54000000 | (distance >> 2 & 0x7FFFF) << 5,
                "jump": 0x14000000 | distance >> 2 & 0x3FFFFFF,
                "return": 0xD65F03C0, "nothing": 0xD503201F}[what]
    else:
        branch = ((distance >> 12 & 1) << 31 | (distance >> 5 & 0x3F) << 25
                  | (distance >> 1 & 0xF) << 8 | (distance >> 11 & 1) << 7 | 0x63)
        jump = ((distance >> 20 & 1) << 31 | (distance >> 1 & 0x3FF) << 21
                | (distance >> 11 & 1) << 20 | (distance >> 12 & 0xFF) << 12 | 0x6F)
        word = {"branch": branch, "jump": jump, "return": 0x8067, "nothing": 0x13}[what]
    return [word.to_bytes(4, "little")]


@dataclass
class Code:
    """Code of one function, as ``KernelCode`` presents it."""

    arch: object
    code: dict

    def instruction(self, address):
        return self.code.get(address, b"")


def function(arch, units):
    """Return the control flow of a function, and the address of each unit.

    :param units: (what a unit is, the number of the unit that it leads to).
    """
    code, places = {}, [LOW + UNIT[arch] * n for n in range(len(units) + 1)]
    for n, (what, to) in enumerate(units):
        at = places[n]
        for instruction in encoded(arch, at, what, places[to]):
            code[at] = instruction
            at += len(instruction)
    symbol = Symbol("f", LOW, places[-1] - LOW, 2)
    return ControlFlow(Code(ARCHITECTURES[arch], code), symbol), places


def following(units, n):
    what, to = units[n]
    after = n + 1 if n + 1 < len(units) else EXIT
    return {"branch": {to, after}, "jump": {to}, "return": {EXIT}, "nothing": {after}}[what]


def reaches_exit(units, start, without=None):
    seen, waiting = {start}, [start]
    while waiting:
        at = waiting.pop()
        if at == EXIT:
            return True
        if at == without:
            continue
        new = following(units, at) - seen
        seen |= new
        waiting += new
    return False


def always_follows(units, later, start):
    """Return whether every way from a unit to the end goes through a later unit."""
    return start == later or (start != EXIT and not reaches_exit(units, start, later))


@given(arch=st.sampled_from(["amd64", "arm64", "riscv64"]), data=st.data())
def test_an_instruction_depends_on_the_branches_of_the_definition(arch, data):
    count = data.draw(st.integers(1, 9))
    units = [(data.draw(st.sampled_from(["branch", "branch", "nothing", "jump", "return"])),
              data.draw(st.integers(0, count - 1))) for _ in range(count)]
    assume(all(reaches_exit(units, n) for n in range(count)))
    flow, places = function(arch, units)
    for n in range(count):
        wanted = {places[b] for b in range(count) if units[b][0] == "branch"
                  and any(always_follows(units, n, to) for to in following(units, b) - {EXIT})
                  and (b == n or not always_follows(units, n, b))}
        assert flow.depends(places[n]) == wanted, (units, n)


def test_a_loop_depends_on_its_own_branch(arch):
    flow, places = function(arch, [("nothing", 0), ("branch", 0), ("return", 0)])
    assert flow.depends(places[0]) == {places[1]} and flow.depends(places[2]) == set()


def test_endless_loops_end_the_analysis(arch):
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randrange(1, 12)
        flow, places = function(arch, [(rng.choice(("branch", "jump")), rng.randrange(count))
                                       for _ in range(count)])
        assert all(flow.depends(at) <= set(places) for at in places[:-1])


def test_a_function_without_a_size_is_refused(arch):
    with pytest.raises(KinstError, match="size"):
        ControlFlow(Code(ARCHITECTURES[arch], {}), Symbol("f", LOW, 0, 2))
