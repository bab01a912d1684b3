"""Tests of ``kinst locks`` where there are no locks; tests/real/test_locks.py has the others."""

import pytest

from tests.kinst_emu.commands.test_commands import refused, run


@pytest.mark.parametrize(("words", "says"), [
    (("-k", "teaching/amd64", "strlen(\"a\")"), "this kernel has no locks that are known"),
    (("strlen(1)",), "give a kernel with -k"),
    (("-k", "teaching/amd64", "boot", "--graph", "order.png"), "must end in .svg or .dot"),
    (("-k", "teaching/amd64", "boot", "--graph", "/nowhere/order.dot"), "/nowhere"),
])
def test_what_cannot_be_shown_is_one_line(words, says):
    refused(run("kinst", "locks", *words), says)
