"""Tests that nouns in messages agree in number with their counts."""

import pytest

from emu.host.printable import counted


@pytest.mark.parametrize(("number", "noun", "text"), [
    (1, "inline copy", "1 inline copy"), (5, "inline copy", "5 inline copies"),
    (0, "schedule", "0 schedules"), (1, "schedule", "1 schedule"), (2, "key", "2 keys"),
])
def test_a_counted_noun_agrees_with_its_number(number, noun, text):
    assert counted(number, noun) == text
