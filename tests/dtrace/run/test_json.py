"""Tests of ``json()``, which finds and refuses what DTrace's parser does."""

import pytest

from dtrace.run.subroutines import json


@pytest.mark.parametrize("text, path, found", [
    (b'{"a": [1, {"b": "x\\"y"}]}', b"a[1].b", b'x\\"y'), (b"[true , x]", b"0", b"true"),
    (b'{"a": -1.5e+3, "b": 12abc}', b"a", b"-1.5e+3"), (b'{"b": 12abc}', b"b", b"12"),
    (b"[-]", b"0", b"-"), (b"[007]", b"0", b"007"), (b"[1e]", b"0", b"1e"),
    (b'["\\u00e9"]', b"0", b"\\u00e9"), (b'["fine", "\\u00AZ"]', b"0", b"fine"),
    (b'{"a": {"b": [1, "]"]}, "c": 2}', b"a", b'{"b": [1, "]"]}'),
])
def test_an_element_is_found(text, path, found):
    assert json(text, path) == found


@pytest.mark.parametrize("text, path", [
    (b"[0x1000]", b"0"), (b"[1-2]", b"0"), (b"[+1]", b"0"), (b"[.5]", b"0"), (b"[tru]", b"0"),
    (b"[True]", b"0"), (b"[1", b"0"), (b'["\\u00AZ"]', b"0"), (b'["\\u00AZ", "later"]', b"1"),
    (b'["a\\', b"0"), (b'["\\', b"0"), (b'["\\u12', b"0"), (b"", b"a"), (b"1", b"0"),
    (b'{"a" 1}', b"a"), (b'{"a": 12abc, "b": 1}', b"b"),
])
def test_what_is_not_json_has_no_elements(text, path):
    assert json(text, path) is None
