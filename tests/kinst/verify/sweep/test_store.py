import contextlib
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.host.errors import KinstError
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.laboratory.comparing import compare, findings_of
from kinst.verify.laboratory.finding import Finding, UnpreparedTask, from_kept, to_kept
from kinst.verify.sweep.store import Kept, Key, Store
from kinst.verify.sweep.sweep import sweep
from kinst.verify.sweep.task import carry_out
from kinst.verify.sweep.workers import Done, Here, Processes, Workers
from kinst_emu.cli.xvals import Checked
from kinst_emu.cli.xvals import from_kept as checked
from kinst_emu.cli.xvals import to_kept as kept_check

KEY = Key("relocate", "tables 1", "amd64", 1, 2)
GOOD = Finding(b"\x90", "copy")
WRONG = Finding(b"\xe2\x05", "copy", 1, "module: copy; kinst-emu: emulate", "displaced",
                ("rcx: 0x1 in place, 0x2 displaced",), source="f (x.c:3)")
NOTED = Finding(b"\xff\xd0", "emulate", note="a note", judged="executed")
TEXT = st.text(max_size=20)


@given(st.builds(Finding, code=st.binary(min_size=1, max_size=15), word=TEXT,
                 state=st.none() | st.integers(0, 1 << 40), verdict=TEXT, how=TEXT,
                 lines=st.lists(TEXT, max_size=3).map(tuple), note=TEXT, judged=TEXT, source=TEXT))
def test_a_finding_survives_serialization(one):
    back = from_kept(to_kept(one))
    if one.wrong:
        assert back == one
    else:
        assert (back.word, back.note, back.judged, back.wrong) == (
            one.word, one.note, one.judged, False)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_arbitrary_text_loads_or_raises_value_error(text):
    with contextlib.suppress(ValueError):
        from_kept(Kept(b"\x90", "copy", text))


def filled(path):
    store = Store(path)
    store.begin(KEY, "kernel 1", "/k", "clang 19", {one.code: "f+1" for one in (GOOD, WRONG)})
    store.put(KEY, list(map(to_kept, [GOOD, WRONG, NOTED])))
    store.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("store") / "s.db")


def used(store):
    """Call every operation of a result store."""
    codes = [GOOD.code, WRONG.code]
    for build in store.builds():
        list(findings_of(store, build))
    with store.reading():
        list(map(from_kept, store.known(KEY, codes)))
    store.digest_rows()
    store.begin(KEY, "kernel 2", "/k", "clang 19", {code: "f+1" for code in codes})
    store.put(KEY, list(map(to_kept, [GOOD, NOTED])))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_store_is_read_or_refused(tmp_path_factory, content, data):
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(changed) - 1))
        some = data.draw(st.binary(min_size=1, max_size=40))
        changed[at : at + len(some)] = some
    path = tmp_path_factory.mktemp("store") / "s.db"
    path.write_bytes(changed)
    with contextlib.suppress(KinstError):
        store = Store(path)
        try:
            used(store)
        finally:
            store.close()


def test_an_intact_store_supports_every_operation(tmp_path):
    filled(tmp_path / "s.db")
    store = Store(tmp_path / "s.db")
    used(store)
    assert sorted(build.identity for build in store.builds()) == ["kernel 1", "kernel 2"]
    store.close()


def test_stored_results_are_found_only_under_their_key(tmp_path):
    store = Store(tmp_path / "s.db")
    store.begin(KEY, "kernel 1", "/k", "clang 19", {one.code: "f+1" for one in (GOOD, WRONG)})
    store.put(KEY, list(map(to_kept, [GOOD, WRONG, NOTED])))
    store.close()
    store = Store(tmp_path / "s.db")
    known = store.known(KEY, [GOOD.code, WRONG.code, b"\xcc"])
    assert {one.item: from_kept(one) for one in known} == {GOOD.code: GOOD, WRONG.code: WRONG}
    other = Key("relocate", "tables 2", "amd64", 1, 2)
    assert not list(store.known(other, [GOOD.code]))
    (build,) = store.builds()
    assert (build.compiler, build.path, build.kind) == ("clang 19", "/k", "relocate")
    assert dict((finding.code, place) for place, finding in findings_of(store, build)) == {
        GOOD.code: "f+1", WRONG.code: "f+1"}


def test_unproven_findings_of_earlier_versions_stay_unproven():
    assert from_kept(Kept(b"\x90", "not shown: copy, which faults in every state", "")) == (
        Finding(b"\x90", "unproven: copy, which faults in every state"))


@pytest.mark.parametrize("findings, worst", [
    ([Finding(b"\x90", "copy", source="zz"), Finding(b"\x90", "copy", 3, "copy", "displaced")], 1),
    ([Finding(b"\x90", "copy", 9), Finding(b"\x90", "copy", 12)], 0),
    ([Finding(b"\x90", "copy", note="zzz"), Finding(b"\x90", "unproven: copy, x")], 1),
    ([Finding(b"\x90", "unproven: copy, x"), Finding(b"\x90", "copy", 0, "copy", "a")], 1),
])
def test_the_worst_of_several_results_counts(tmp_path, findings, worst):
    store = Store(tmp_path / "s.db")
    for seed, one in enumerate(findings):
        key = Key("relocate", "tables 1", "amd64", seed, 2)
        store.begin(key, "kernel 1", "/k", "clang 19", {one.code: "f+1"})
        store.put(key, list(map(to_kept, [one])))
    (build,) = store.builds()
    assert [found.state for _place, found in findings_of(store, build)] == [findings[worst].state]
    assert [found.word for _place, found in findings_of(store, build)] == [findings[worst].word]


def test_two_builds_are_compared(tmp_path):
    fixed = Finding(WRONG.code, "emulate")
    new = Finding(b"\x55", "copy")
    found = compare([("f", GOOD), ("g", WRONG)], [("f", GOOD), ("g", fixed), ("h", new)])
    assert [place for place, _finding in found.fixed] == ["g"] and not found.broke
    assert found.same == 1 and found.only == (0, 1) and found.wrong == (1, 0)
    found = compare([("f", GOOD), ("g", fixed)], [("g", WRONG), ("f", NOTED)])
    assert [place for place, _finding in found.broke] == ["g"]
    assert found.only == (1, 1)


@pytest.mark.parametrize("content, says", [
    (b"not a database at all, but long enough to be looked at" * 20, "not a database"),
    (b"", None),
])
def test_a_file_that_is_not_a_store_is_refused(tmp_path, content, says):
    path = tmp_path / "file"
    path.write_bytes(content)
    if says is None:
        with pytest.raises(KinstError, match="not a result store"):
            Store(path, must_exist=True)
        return
    with pytest.raises(KinstError, match=says):
        Store(path)
    assert path.read_bytes() == content


def report(*words):
    """Run ``kinst report`` and return its exit status, output and errors."""
    done = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", "report", *words],
                          capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("statement", [
    "UPDATE encoding SET code = 1000000000000",
    "UPDATE result SET detail = 7",
    "UPDATE result SET detail = '" + "[" * 100_000 + "'",
    "UPDATE result SET detail = '[]'",
    "UPDATE build SET architecture = 'vax'",
    "UPDATE build SET path = x'ff'",
    "DROP TABLE word",
    "CREATE TRIGGER t AFTER INSERT ON word BEGIN DELETE FROM word; END",
    "DROP TABLE build; CREATE VIEW build AS WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT "
    "id + 1 FROM c) SELECT id, 'x' AS identity, 1 AS subject, 'amd64' AS architecture, 'p' AS "
    "path, 'c' AS compiler, 0 AS begun FROM c",
    "UPDATE build SET architecture = CAST(x'0a1b5b33316dff' AS TEXT)",
])
def test_a_tampered_store_prints_a_one_line_error(tmp_path, statement):
    path = tmp_path / "s.db"
    store = Store(path)
    store.begin(KEY, "kernel 1", "/k", "clang 19", {WRONG.code: "f+1"})
    store.put(KEY, list(map(to_kept, [WRONG])))
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(statement)
        db.commit()
    status, _shown, error = report(path)
    if "SET path" in statement:
        assert not status
    else:
        assert status == 1 and error.startswith(f"kinst: {path}: ") and error.count("\n") == 1
        assert "\x1b" not in error


def test_a_comparison_names_calls_and_source_lines(tmp_path):
    path = tmp_path / "s.db"
    store = Store(path)
    call = Finding(b"strlen(3)", "agrees")
    for subject, one in (("a", call), ("b", Finding(call.code, "differs", 0, source="f (x.c:3)"))):
        key = Key("xval", subject, "arm64", 0, 0)
        store.begin(key, "kernel", "/k", "", {call.code: "strlen"})
        store.put(key, list(map(to_kept, [one])))
    store.close()
    status, shown, error = report(path, "--compare", "1", "2")
    assert (status, error) == (1, "")
    assert "broke: strlen: strlen(3)\n    f (x.c:3)\n" in shown


@pytest.mark.parametrize("note", [
    "", "[", "[" * 100_000, "{}", '{"calls": Infinity}', '{"report": {}}',
])
def test_an_invalid_cross_check_is_refused(note):
    with pytest.raises(ValueError):
        checked(to_kept(Finding(b"f(1)", "differs", 0, note=note)))


def test_a_cross_check_survives_serialization():
    agreed = Agreement(1, 20, 3, {"f"}, {"copy": {b"\x90"}}, Counter({1: 3}), Counter({"why": 1}),
                       2)
    one = Checked("f(1)", "agrees", agreed)
    assert checked(kept_check(one)) == one
    report = {"call": "f(1)", "what": "a register", "address": 5,
              "registers": [{"name": "rax", "ours": 1, "qemu": 2}]}
    wrong = Checked("f(1)", "differs", agreed, report)
    assert checked(kept_check(wrong)) == wrong
    for broken in ({**report, "call": 1}, {**report, "address": "x"}, {"call": "f(1)"},
                   {**report, "registers": [{"name": "rax", "ours": 1}]}):
        with pytest.raises(ValueError):
            checked(kept_check(Checked("f(1)", "differs", agreed, broken)))


def test_a_foreign_database_is_left_unchanged(tmp_path):
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(KinstError, match="not a result store"):
        Store(path)
    assert path.read_bytes() == before


@dataclass(frozen=True)
class Lengths(UnpreparedTask):
    """Task whose result for each encoding is a finding that states the encoding's length."""

    def results(self, prepared, items):
        return [Finding(code, f"of {len(code)} bytes") for code in items]


class Killed(Workers):
    """Workers that raise ``KeyboardInterrupt`` after a given number of parts."""

    def __init__(self, after):
        self.after = after

    def done(self, task, parts, ordered=False):
        for number, items in enumerate(parts):
            if number == self.after:
                raise KeyboardInterrupt
            yield Done(items, carry_out(task, items))


class Counted(Here):
    """Worker that counts the items in the parts that it completes."""

    items = 0

    def done(self, task, parts, ordered=False):
        for one in super().done(task, parts, ordered):
            self.items += len(one.items)
            yield one


def test_a_killed_sweep_resumes_where_it_stopped(tmp_path):
    codes = [n.to_bytes(2, "little") for n in range(1000)]
    store, done = Store(tmp_path / "s.db"), []
    with pytest.raises(KeyboardInterrupt):
        for some in sweep(Lengths(), codes, Killed(3), store, KEY, 50, most=1):
            done += some
    assert len(done) == 150
    again, workers = [], Counted()
    for some in sweep(Lengths(), codes, workers, store, KEY, 50, most=1):
        again += some
    assert sorted(one.code for one in again) == sorted(codes)
    assert workers.items == 850
    whole = Store(tmp_path / "whole.db")
    for _some in sweep(Lengths(), codes, Processes(2), whole, KEY, 50, most=1):
        pass
    assert whole.digest_rows() == store.digest_rows()
