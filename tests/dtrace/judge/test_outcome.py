"""Tests of comparing what dtrace(1) and kdtrace printed; the outputs were recorded."""

from dtrace.judge.outcome import Outcome, differences, kinds

HEAD = "CPU     ID                    FUNCTION:NAME\n"
THEIRS = Outcome(
    0, f"{HEAD}  0  41819                         :tick-1s \n",
    "dtrace: script '/dev/stdin' matched 2 probes\ndtrace: buffer size lowered to 2m\n"
    "dtrace: error on enabled probe ID 3 (ID 1: dtrace:::BEGIN): divide-by-zero in action #2 at "
    "DIF offset 8\n")
OURS = Outcome(
    0, f"{HEAD}  0     17                         :tick-1s \n",
    "dtrace: script '/tmp/x.d' matched 2 probes\n"
    "dtrace: error on enabled probe ID 1 (ID 1: dtrace:::BEGIN): divide-by-zero in action #2 at "
    "BPF offset 23\n")


def test_what_differs_on_purpose_is_not_a_difference():
    assert differences(THEIRS, OURS) == []


def test_status_output_and_errors_are_compared():
    found = differences(THEIRS, Outcome(1, OURS.output + "5\n", OURS.errors.replace("#2", "#1")))
    assert found[0] == "exit status: dtrace(1) 0, kdtrace 1"
    assert "  +5" in found and kinds(found) == {"exit status", "output", "errors"}


def test_a_missing_newline_is_a_difference():
    found = differences(Outcome(0, "a\n"), Outcome(0, "a"))
    assert found == ["output (- dtrace(1), + kdtrace):", "  -'a\\n'", "  +'a'"]


def test_a_long_difference_is_cut():
    found = differences(Outcome(0, "a\n" * 500), Outcome(None, ""))
    assert found[0] == "exit status: dtrace(1) 0, kdtrace none (it did not end)"
    assert len(found) < 50 and found[-1].endswith(" more lines")


def test_a_limit_of_dtrace_is_not_a_difference():
    theirs = Outcome(1, "", "dtrace: failed to compile script x: line 1: Insufficient registers to "
                     "generate code\n")
    assert theirs.limited and theirs.refused
    assert differences(theirs, Outcome(0, "5\n")) == []


def test_what_a_program_prints_is_not_changed():
    for one, other in (("script foo ok\n", "script bar ok\n"),
                       ("    1     2  a:b \n", "    1     3  a:b \n"),
                       ("at DIF offset 1\n", "at DIF offset 2\n")):
        assert differences(Outcome(0, one), Outcome(0, other))


def test_faults_that_are_only_counted_must_be_as_many():
    ours = Outcome(0, "", "dtrace: error on enabled probe ID 1 (ID 1: dtrace:::BEGIN): x\n" * 2)
    assert not differences(Outcome(0, "", "dtrace: 2 errors in ERROR probe enabling\n"), ours)
    assert differences(Outcome(0, "", "dtrace: 1 error in ERROR probe enabling\n"), ours)
    # Where dtrace(1) prints the faults, too, those of the ERROR probe are others.
    both = "dtrace: 2 errors in ERROR probe enabling\n" + ours.errors
    assert differences(Outcome(0, "", both), ours)
    assert not differences(Outcome(0, "", both), Outcome(0, "", both))


def test_addresses_that_dtrace_does_not_name_are_not_compared():
    message = "dtrace: error on enabled probe ID 1 (ID 1: dtrace:::BEGIN): invalid address ({}) in "
    theirs, ours = (Outcome(0, "", message.format(address) + "action #1\n")
                    for address in ("0x0", "0x40"))
    assert differences(theirs, ours)
    assert differences(theirs, ours, addresses=False) == []
    assert differences(theirs, Outcome(0, "", ""), addresses=False)
