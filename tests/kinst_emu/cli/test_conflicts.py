"""Tests of the table of command-line options that cannot be combined."""

import pytest

from emu.host.errors import KinstError
from kinst_emu.cli.command_line import make_parser, read_command_line
from kinst_emu.cli.conflicts import RULES, refuse
from kinst_emu.commands.kinst import whole_parser


@pytest.fixture(scope="module")
def commands():
    (action,) = (one for one in whole_parser()._actions if one.dest == "command")
    return {**action.choices, "kdtrace": make_parser()}


def test_every_rule_names_options_of_its_command(commands):
    assert sum(map(len, RULES.values())) > 50
    for command, rules in RULES.items():
        known = {one.dest for one in commands[command]._actions}
        for rule in rules:
            assert known.issuperset((*rule.options, *rule.beside, *rule.without)), (command, rule)
            assert bool(rule.beside) != bool(rule.without), (command, rule)


@pytest.mark.parametrize("words", [
    ("--replay", "a.rec", "-c", ""), ("--replay", "a.rec", "--memory", ""),
    ("--run", "f()", "-n", "kinst::f:"), ("--tracks", "a.json", "-n", "kinst::f:"),
    ("--machine", "qemu", "--disk", "a.img", "-n", "kinst::f:"),
    ("--replay", "a.rec", "--base"), ("--replay", "a.rec", "--date", "2026-01-31"),
    ("--schedule", "A B", "--single"), ("--machine", "qemu", "--base", "-n", "kinst::f:"),
    ("--sources", "src", "-n", "kinst::f:"), ("--report", "a.html", "-l"),
    ("--schedule", "A B", "--cpus", "2", "-n", "kinst::f:"),
])
def test_kdtrace_refuses_conflicting_options(words):
    with pytest.raises(KinstError, match=r"^-"):
        read_command_line(["-k", "teaching/amd64", *words])


@pytest.mark.parametrize(("command", "rule"), [
    (command, rule) for command, rules in RULES.items() for rule in rules],
    ids=lambda one: one if isinstance(one, str) else "-".join(one.options + one.beside))
def test_each_rule_accepts_defaults_and_refuses_a_conflict(commands, command, rule):
    """All defaults together are accepted; options that break the rule are refused."""
    parser = commands[command]
    arguments = type("Arguments", (), {one.dest: parser.get_default(one.dest)
                                       for one in parser._actions})()
    refuse(command, arguments, parser.get_default)
    for option in (*rule.options[:1], *rule.beside[:1]):
        setattr(arguments, option, "given")
    with pytest.raises(KinstError) as error:
        refuse(command, arguments, parser.get_default)
    assert str(error.value) in {one.says for one in RULES[command]}
