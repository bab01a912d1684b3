"""Tests of the action table: one row defines everything about an action."""

import io
import json

import pytest

from dtrace.d.compile.actions import ACTIONS, Action
from dtrace.d.language.identifiers import ACTION_PROTOTYPES, FUNCTIONS, Builtin, Role
from dtrace.d.language.options import Options
from dtrace.run.consumer import Consumer
from dtrace.run.render import NoSymbols
from tests.dtrace.programs import quiet, run, tag


def test_every_action_names_the_consumer_method_that_prints_it():
    consumer = Consumer(Options(), NoSymbols(), io.StringIO(), lambda text: None)
    assert ACTIONS.keys() == ACTION_PROTOTYPES.keys()
    for action in ACTIONS.values():
        assert not action.consumer or callable(getattr(consumer, f"_{action.consumer}"))
        assert action.consumer or not action.data, "no consumer method prints its data"


@pytest.fixture
def doubled(monkeypatch):
    """Add one table row that defines the action ``doubled``, which DTrace lacks."""
    def emit(code, e):
        code.noted("doubled", [code.recorded(argument) for argument in e.arguments * 2])

    monkeypatch.setitem(ACTIONS, "doubled", Action(emit, "doubled"))
    monkeypatch.setitem(FUNCTIONS, "doubled", Builtin("doubled", Role.ACTION, "void", ("int",)))
    monkeypatch.setattr(
        Consumer, "_doubled", lambda self, _e, _action, values: self.write(
            " ".join(str(int.from_bytes(value, "little")) for value in values)), raising=False)


def test_an_action_is_added_with_one_table_row(doubled):
    assert quiet("BEGIN { doubled(21); exit(0); }") == "21 21"
    assert tag("BEGIN { doubled(); }") == "D_PROTO_LEN"
    assert tag("BEGIN { x = doubled(1); }") == "D_OP_INCOMPAT"
    _status, out, _said = run("--json", "-n", "BEGIN { doubled(21); exit(0); }")
    assert json.loads(out.splitlines()[0])["actions"][0] == {
        "action": "doubled", "value": [21, 21]}


def test_destructive_functions_are_marked():
    assert {name for name, function in FUNCTIONS.items() if function.destructive} == {
        "breakpoint", "chill", "copyout", "copyoutstr", "freopen", "panic", "raise", "stop",
        "system"}
