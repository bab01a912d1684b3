"""Tests of how the arguments of system calls are shown."""

from types import SimpleNamespace

import pytest

from dtrace.reasons.made_calls import MadeCalls, _is_const
from dwarf.types import Integer, Member, Pointer, Qualified, Typedef

CHAR = Integer("char", 1, True, "char")
TEXT = b"/etc/motd\0".ljust(64, b"\0")


def pointer(kind):
    return Pointer(lambda: kind)


CONST = Qualified("const", lambda: CHAR)
NAMED = Typedef("path_t", lambda: Qualified("volatile", lambda: CONST))
ENDLESS = Typedef("again", lambda: ENDLESS)


@pytest.mark.parametrize(("kind", "shown"), [
    (pointer(CONST), '"/etc/motd"'), (pointer(NAMED), '"/etc/motd"'),
    (pointer(CHAR), "0x1000"),  # a buffer for a result: it still has what was there before
    (Qualified("const", lambda: pointer(CHAR)), "0x1000"),
    (pointer(Integer("int", 4, True)), "0x1000"), (Integer("int", 4, True), "4096")])
def test_only_constant_strings_are_shown_as_text(kind, shown):
    calls = object.__new__(MadeCalls)
    calls._machine = SimpleNamespace(read=lambda at, size: TEXT[at - 0x1000 :][:size])
    member = Member("x", 0, None, lambda: kind)
    assert calls._shown(member, 0x1000) == shown


def test_damaged_types_are_not_followed_forever():
    assert not _is_const(ENDLESS)
