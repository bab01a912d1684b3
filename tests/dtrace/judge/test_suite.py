"""Tests of the rules of DTrace's public test suite."""

import pytest

from dtrace.judge import suite as rules
from dtrace.judge.outcome import Outcome
from dtrace.judge.suite import why_failed


@pytest.fixture
def suite(tmp_path):
    for name in ("aggs/tst.count.d", "aggs/err.D_AGG_NULL.bad.d", "aggs/err.plain.d",
                 "decls/err.D_SYNTAX.d", "drops/drp.DTRACEDROP_PRINCIPAL.end.d", "pid/tst.args.d",
                 "aggs/helper.d"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("BEGIN { exit(0); }\n")
    (tmp_path / "aggs" / "tst.count.d.out").write_text("1\n")
    (tmp_path / "pid" / "tst.args.c").write_text("int main(void) { }\n")
    return {test.name: test for test in rules.tests(tmp_path)}


def test_names_say_what_is_expected(suite):
    assert list(suite) == ["aggs/err.D_AGG_NULL.bad.d", "aggs/err.plain.d", "aggs/tst.count.d",
                           "decls/err.D_SYNTAX.d", "drops/drp.DTRACEDROP_PRINCIPAL.end.d",
                           "pid/tst.args.d"]
    refused = suite["aggs/err.D_AGG_NULL.bad.d"]
    assert (refused.kind, refused.status, refused.tag) == ("aggs", 1, "D_AGG_NULL")
    assert refused.options == "-x errtags"
    assert suite["aggs/err.plain.d"].tag == ""
    assert suite["decls/err.D_SYNTAX.d"].tag == "D_SYNTAX"
    assert suite["drops/drp.DTRACEDROP_PRINCIPAL.end.d"].options == "-x droptags"
    assert suite["aggs/tst.count.d"].output == "1\n"
    assert suite["pid/tst.args.d"].program == "tst.args.c"


def test_status_tag_and_output_decide(suite):
    count, refused = suite["aggs/tst.count.d"], suite["aggs/err.D_AGG_NULL.bad.d"]
    assert why_failed(count, Outcome(0, "1\n")) == ""
    assert why_failed(count, Outcome(0, "2\n")) == "other output"
    assert why_failed(count, Outcome(1, "1\n")) == "exit status 1 instead of 0"
    assert why_failed(count, Outcome(None, "")) == "does not end"
    assert why_failed(refused, Outcome(1, "", "dtrace: failed: [D_AGG_NULL] line 1: ...")) == ""
    assert why_failed(refused, Outcome(1, "", "dtrace: failed: [D_SYNTAX] line 1: ...")) == (
        "no D_AGG_NULL")
    later = "dtrace: a message\ndtrace: failed: [D_AGG_NULL] line 1: ..."
    assert why_failed(refused, Outcome(1, "", later)) == "no D_AGG_NULL"
    drops = suite["drops/drp.DTRACEDROP_PRINCIPAL.end.d"]
    assert why_failed(drops, Outcome(0, "", "a\ndtrace: [DTRACEDROP_PRINCIPAL] 1 drop\n")) == ""
    assert why_failed(drops, Outcome(0, "", "")) == "no DTRACEDROP_PRINCIPAL"
