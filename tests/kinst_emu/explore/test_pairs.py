"""Tests of pairs of calls from a corpus, ranked by the memory that they share."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst_emu.explore.pairs import Use, ranked
from tests.kinst_emu.commands.test_commands import run

CORPUS = """# calls of the kernel with the seeded defects
counter_bad()
counter_good()

purse_reset(); purse_move_good()
seat_reset(); seat_take_bad()
strlen("no store")
"""


def pairs(arch, corpus, *arguments):
    return run("kinst", "explore", "-k", f"races/{arch}", "--memory", "64M", "--pairs",
               str(corpus), *arguments)


def test_pairs_that_share_memory_are_explored(arch, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.write_text(CORPUS)
    ran = pairs(arch, corpus)
    assert ran.returncode == 1, ran.stderr
    assert "counter_bad() | counter_bad()" in ran.stdout
    assert "counter_bad() | counter_good()" in ran.stdout
    assert "counter_good() | counter_good()" not in ran.stdout
    assert "strlen" not in ran.stdout


def test_a_search_resumes_from_its_store_without_repeating_pairs(arch, tmp_path):
    corpus, store = tmp_path / "corpus", tmp_path / "store"
    corpus.write_text(CORPUS)
    first = pairs(arch, corpus, "--store", str(store), "--limit", "2")
    assert "2 were tried now, 0 before" in first.stdout
    kept = store.read_bytes()
    # Imitate a search that was killed while it wrote a row.
    store.write_bytes(kept + b'{"pair": ["half a')
    rest = pairs(arch, corpus, "--store", str(store), "--jobs", "2", "--json")
    assert rest.returncode in (0, 1), rest.stderr
    rows = [json.loads(line) for line in kept.splitlines()]
    again = [json.loads(line)["pair"] for line in rest.stdout.splitlines()]
    assert len(rows) == 2 and again and not [r for r in rows if r["pair"] in again]
    whole = pairs(arch, corpus, "--store", str(store))
    assert " 0 were tried now" in whole.stdout
    assert whole.returncode == 1 and "of those tried before" in whole.stdout
    more = pairs(arch, corpus, "--store", str(store), "--schedules", "7", "--limit", "2")
    assert "2 were tried now, 0 before" in more.stdout, "other --schedules reuse no row"


def test_pairs_are_explored_even_if_all_calls_share_the_memory(arch, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.write_text("counter_bad()\ncounter_good()\n")
    ran = pairs(arch, corpus)
    assert ran.returncode == 1 and "3 pairs of 2 calls access common memory" in ran.stdout


def test_an_invalid_corpus_or_store_is_refused_in_one_line(arch, tmp_path):
    corpus = tmp_path / "corpus"
    for content, said in ((b"", "no calls"), (b"# nothing", "no calls"), (b"f(", ":1:"),
                          (b"strlen(1)\xff", ":1:"), (b"counter_bad()\nnothing_there()", ":2:"),
                          (b"x" * (2 << 20), "KiB")):
        corpus.write_bytes(content)
        ran = pairs(arch, corpus)
        assert ran.returncode == 1 and said in ran.stderr and ran.stderr.count("\n") == 1, said
    corpus.write_text("counter_bad()")
    store = tmp_path / "store"
    store.write_text("[1, 2]\n")
    for arguments, said in ((("--store", str(store)), "not a store of pairs"),
                            (("--store", "/nowhere/at/all"), "the directory does not exist"),
                            (("--run", "counter_bad()"), "--run"),
                            (("--schedule", "A B"), "--schedule")):
        ran = pairs(arch, corpus, *arguments)
        assert ran.returncode == 1 and said in ran.stderr and ran.stderr.count("\n") == 1, said
    assert pairs(arch, tmp_path / "none").returncode == 1


SETS = st.frozensets(st.integers(0, 6), max_size=4)


@given(st.lists(st.builds(Use, SETS, SETS), max_size=6))
def test_exactly_the_pairs_that_share_written_memory_are_ranked(uses):
    found = ranked(uses)
    assert len(found) == len(set(found))
    for i, one in enumerate(uses):
        for j in range(i, len(uses)):
            other = uses[j]
            meet = (one.writes & (other.reads | other.writes)) | (other.writes & one.reads)
            assert ((i, j) in found) is bool(meet)


def test_a_cluster_has_the_same_findings_as_one_process(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__DAEMON", "False")
    corpus = tmp_path / "corpus"
    corpus.write_text("purse_move_bad()\npurse_move_good()\ncounter_bad()\npurse_check()\n")

    def found(*more):
        ran = run("kinst", "explore", "-k", "races/amd64", "--memory", "64M", "--pairs",
                  str(corpus), "--json", *more)
        assert ran.returncode == 1, ran.stderr
        return sorted(ran.stdout.splitlines())
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=True,
                                  dashboard_address=None, host="127.0.0.1") as cluster:
        assert found("--cluster", cluster.scheduler_address) == found()

        def schedules(*more):
            words = [word for call in ("purse_move_bad()",) * 3 for word in ("--run", call)]
            ran = run("kinst", "explore", "-k", "races/amd64", "--memory", "64M", "--setup",
                      "purse_reset()", "--check", "purse_check()", *words, "--json", *more)
            assert ran.returncode == 1, ran.stderr
            return {**json.loads(ran.stdout), "seconds": 0}
        for more in ((), ("--all-findings", "--limit", "200"), ("--strategy", "pct")):
            assert schedules("--cluster", cluster.scheduler_address, *more) == schedules(*more)


@pytest.mark.parametrize(("option", "said"), [
    (("--cluster", "tcp://127.0.0.1:9", "--schedule", "A B"),
     "--cluster: cannot be used with --schedule, which runs one schedule"),
    (("--schedules", "3"), "--schedules: works only with --pairs"),
    (("--store", "found"), "--store: works only with --pairs"),
    (("--trampolines", "shared"), "--trampolines: works only with --probe"),
    (("--sources", "."), "--sources: works only with --html"),
    (("--pairs", "corpus"), "--run: cannot be used with --pairs"),
])
def test_an_option_without_effect_is_refused(option, said):
    ran = run("kinst", "explore", "-k", "races/amd64", "--run", "purse_check()", "--run",
              "purse_check()", *option)
    assert ran.returncode == 1 and ran.stderr == f"kinst: {said}\n"


@pytest.mark.parametrize("option", [
    ("--strategy", "all"), ("--preemptions", "2"), ("--no-races",), ("--all-findings",),
    ("--probe", "purse_check:0"), ("--trampolines", "shared"), ("--html", "page.html"),
])
def test_an_option_for_runs_is_refused_with_pairs(option):
    ran = run("kinst", "explore", "-k", "races/amd64", "--pairs", "corpus", *option)
    assert ran.returncode == 1
    assert ran.stderr == f"kinst: {option[0]}: cannot be used with --pairs\n"
