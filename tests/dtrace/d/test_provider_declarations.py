"""Tests of declarations of providers: what they mean, and what is refused as dtrace(1) does."""

import pytest

from dtrace.d.language.errors import DError
from dwarf.types import declare
from tests.dtrace.usdt.test_linked_probes import declared


def test_a_declaration_has_the_probes_with_their_arguments():
    provider = declared("""provider p { probe one(int, char *name); probe two__three();
        probe map(int a, long b) : (long b, int a); probe none(void); };""")["p"]
    assert [(one.name, [declare(k) for k in one.native], [declare(k) for k in one.seen],
             one.mapping) for one in provider.probes] == [
        ("one", ["int", "char *"], ["int", "char *"], (0, 1)),
        ("two-three", [], [], ()), ("map", ["int", "long"], ["long", "int"], (1, 0)),
        ("none", [], [], ())]


@pytest.mark.parametrize("before", [True, False])
def test_a_pragma_says_how_stable_a_provider_is(before):
    pragma, provider = "#pragma D attributes Evolving/Evolving/ISA provider p function\n", (
        "provider p { probe one(); };\n")
    both = (pragma, provider) if before else (provider, pragma)
    assert declared("".join(both))["p"].attributes == {"function": "Evolving/Evolving/ISA"}


@pytest.mark.parametrize("source, tag", [
    ("provider p1 { probe a(); };", "D_PROV_BADNAME"),
    (f"provider {'p' * 64} {{ probe a(); }};", "D_PROV_BADNAME"),
    (f"provider p {{ probe {'a' * 64}(); }};", "D_PROV_BADNAME"),
    ("provider p { probe a(); probe a(); };", "D_PROV_PRDUP"),
    ("provider p { probe a(); }; provider p { probe b(); };", "D_PROV_INCOMPAT"),
    ("provider p { probe a(int x) : (int); };", "D_DECL_PROTO_NAME"),
    ("provider p { probe a(int x) : (int y); };", "D_DECL_PROTO_FORM"),
    ("provider p { probe a(int x, int x); };", "D_DECL_PROTO_FORM"),
    ("provider p { probe a(void x); };", "D_DECL_PROTO_NAME"),
    ("provider p { probe a(int, void); };", "D_DECL_PROTO_VOID"),
    ("provider p { probe a(int, ...); };", "D_DECL_PROTO_VARARGS"),
    (f"provider p {{ probe a({', '.join(['int'] * 256)}); }};", "D_PROV_PRARGLEN"),
])
def test_what_is_not_allowed_is_refused(source, tag):
    with pytest.raises(DError) as error:
        declared(source)
    assert error.value.tag == tag
