import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.descriptions.description import create, parse
from dtrace.descriptions.providers import PROVIDERS
from dwarf.debug_file import DebugDataError
from emu.host.errors import KinstError
from kinst.probes.breakpoints import Breakpoints


@pytest.mark.parametrize("text, parts", [
    ("kinst::strlen:4", ("kinst", "", "strlen", "4")),
    ("kinst:kernel:strlen:", ("kinst", "kernel", "strlen", "")),
    ("strlen:entry", ("", "", "strlen", "entry")), ("entry", ("", "", "", "entry")),
])
def test_leading_parts_may_be_omitted(text, parts):
    found = parse(text)
    assert (found.provider, found.module, found.function, found.name) == parts


@pytest.mark.parametrize("text, says", [
    ("a:b:c:d:e", "give provider:module:function:name"), ("", "give provider"),
    ("kinst::f:1{}", "without predicate and actions"), ("kinst::f:1/1/", "without predicate"),
])
def test_an_invalid_description_is_refused(text, says):
    with pytest.raises(KinstError, match=says):
        parse(text)


@given(st.text(max_size=40))
def test_arbitrary_text_is_a_description_or_refused(text):
    try:
        found = parse(text)
    except KinstError:
        return
    assert found.text == text


@pytest.mark.parametrize("text, provider, count", [
    ("fbt::strlen:", "fbt", 2), ("strlen:entry", "fbt", 1), ("::strlen:return", "fbt", 1),
    ("f*::strlen:e*", "fbt", 1), ("fbt:k*:strlen:entry", "fbt", 1), ("kinst::strlen:0", "kinst", 1),
])
def test_a_description_creates_the_probes_it_matches(booted, text, provider, count):
    breakpoints = Breakpoints(booted)
    assert len(create(breakpoints, parse(text), False).numbers) == count
    assert {p.provider for p in breakpoints.probes} == {provider}


@pytest.mark.parametrize("text, says", [
    ("nope::strlen:", "no provider 'nope', only kinst and fbt"), ("z*::strlen:", "no provider"),
    ("kinst:mod:strlen:", "unknown module 'mod'"), ("kinst:::", "needs a function"),
    ("kinst::zz*:", "no function matches 'zz*'"), ("fbt::strlen:foo", "named entry and return"),
    ("fbt::nosuch:", "no function 'nosuch'"),
])
def test_a_description_that_matches_nothing_says_why(booted, text, says):
    with pytest.raises(KinstError) as error:
        create(Breakpoints(booted), parse(text), False)
    assert str(error.value).startswith(f"invalid probe specifier {text}: ")
    assert says in str(error.value)


def no_debug_data():
    raise DebugDataError("kernel: has no debug data")


def test_probing_an_inline_function_requires_debug_data(booted):
    with pytest.raises(KinstError) as error:
        create(Breakpoints(booted), parse("kinst::mix:entry"), False, no_debug_data)
    assert str(error.value) == (
        "invalid probe specifier kinst::mix:entry: the kernel has no function 'mix', and its "
        "inline functions are unknown: kernel: has no debug data")


def test_probing_an_ordinary_function_needs_no_debug_data(booted):
    made = create(Breakpoints(booted), parse("kinst::strlen:entry"), False, no_debug_data)
    assert len(made.numbers) == 1


def test_the_provider_table_lists_each_provider_once():
    assert [provider.name for provider in PROVIDERS] == ["kinst", "fbt", "pid", "sdt", "usdt"]
    assert [provider.matches("") for provider in PROVIDERS] == [
        False, True, False, True, False]
