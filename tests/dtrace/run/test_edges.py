"""Tests of edge cases at run time that must behave as in DTrace."""


import pytest

from dtrace.run import aggregations
from tests.dtrace.programs import command, quiet, run


def test_a_missing_probe_in_a_script_is_reported_with_its_line(tmp_path):
    script = tmp_path / "a.d"
    script.write_text("BEGIN { }\n\nfbt::nosuch:entry { }\n")
    status, _out, said = run("-k", "teaching/amd64", "-s", str(script), "-c", 'strlen("a")')
    assert status == 1 and "line 3: probe description fbt::nosuch:entry" in said
    assert "the kernel has no function 'nosuch'" in said


def test_the_Z_option_permits_missing_probes():
    status, out, said = run("-k", "teaching/amd64", "-Z", "-q", "-n",
                            'fbt::nosuch:entry { } BEGIN { printf("on"); }', "-c", 'strlen("a")')
    assert status == 0 and out.startswith("on") and "Traceback" not in said


def test_the_droptags_option_adds_tags_to_drop_messages():
    program = 'BEGIN { trace("a"); trace("b"); trace("c"); } tick-1s { exit(0); }'
    words = ("-x", "bufsize=32", "-x", "strsize=16", "-q", "-n", program)
    assert "[DTRACEDROP_PRINCIPAL] 1 drop on CPU 0" in run("-x", "droptags", *words)[2]
    assert "DTRACEDROP" not in run(*words)[2]


def test_a_program_that_exits_in_begin_needs_no_workload():
    status, out, _said = run("-k", "teaching/amd64", "-q", "-n", "BEGIN { trace(1); exit(3); }")
    assert (status, out) == (3, "1\n")


def test_a_program_that_does_not_exit_needs_a_workload():
    status, out, said = run("-k", "teaching/amd64", "-q", "-n", "BEGIN { trace(1); }")
    assert status == 1 and out.startswith("1") and "nothing to run" in said
    status, out, said = run("-k", "teaching/amd64", "-q", "-n", "kinst::strlen:")
    assert status == 1 and not out and "nothing to run" in said


def test_a_kernel_without_a_workload_waits_while_probes_fire_at_intervals():
    words = ("-k", "teaching/amd64", "-q", "-n",
             "tick-900ms { printf(\"%d \", i++); }")
    assert run(*words, "-n", "tick-2500ms { exit(4); }")[:2] == (4, "0 1 \n")
    status, out, said = run(*words, "--idle", "3")
    assert (status, out) == (0, "0 1 2 \n") and "has been idle for 3 virtual seconds" in said
    assert "nothing to run" not in said


@pytest.mark.parametrize("name", ["pid", "ppid", "pgid", "sid"])
def test_without_a_shell_in_the_guest_no_process_has_the_number_of_kdtrace(name):
    _status, out, _said = run("-k", "teaching/arm64", "-q", "-n",
                              f"BEGIN {{ printf(\"%d\", ${name}); exit(0); }}")
    assert out == "2147483647\n"


@pytest.mark.parametrize("arch, register", [
    ("amd64", "R_RAX"), ("arm64", "R_X0"), ("riscv64", "R_A0")])
def test_uregs_of_a_kernel_thread_is_an_invalid_address(arch, register):
    _status, _out, said = run("-k", f"teaching/{arch}", "-n",
                              f"kinst::strlen:0 {{ trace(uregs[{register}]); }}",
                              "-c", 'strlen("abc")')
    assert "invalid address (0x0)" in said


def test_chill_is_limited_to_half_of_each_second():
    begin = "BEGIN { chill(%d); printf(\"ok\"); exit(0); }"
    assert run("-w", "-q", "-n", begin % 500_000_000)[1] == "ok\n"
    assert "illegal operation" in run("-w", "-q", "-n", begin % 500_000_001)[2]
    twice = "BEGIN { chill(300000000); printf(\"one \"); } BEGIN { chill(300000000); exit(0); }"
    _status, out, said = run("-w", "-q", "-n", twice + " tick-2s { exit(0); }")
    assert out == "one \n" and said.count("illegal operation") == 1


def test_chill_advances_the_clock_without_a_kernel():
    assert quiet("BEGIN { t = timestamp; chill(1000); } BEGIN { trace(timestamp - t); exit(0); }",
                 "-w") == "1000"


def test_an_output_format_that_is_not_supported_is_refused():
    for words, said in ((("-x", "oformat=html"), "is not supported; use json or xml"),
                        (("-x", "oformat=yaml"), "Invalid value for specified option"),
                        (("-x", "oformat"), "Invalid value for specified option")):
        status, out, text = run(*words, "-n", "BEGIN { exit(0); }")
        assert status == 1 and not out and said in text
    assert quiet("BEGIN { trace(1); exit(0); }", "-x", "oformat=none") == "1"


def _names(text):
    _status, out, _said = run("-k", "teaching/amd64", "-l", "-n", text)
    return [line.split()[-1] for line in out.splitlines()[1:]]


def test_kinst_offsets_may_be_patterns():
    every = _names("kinst::strlen:")
    assert len(every) > 5 and _names("kinst::strlen:*") == every
    assert _names("kinst::strlen:1*") == [name for name in every if name.startswith("1")] != []
    assert _names("kinst::strlen:[0-9]") == [name for name in every if len(name) == 1]


def test_output_does_not_depend_on_the_locale(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for words in ((), ("-o", str(tmp_path / "out"))):
        status, out, said = command("-k", "teaching/amd64", "-n", 'BEGIN { trace("\u00e4"); }',
                                    "-c", 'strlen("\u00e4")', *words)
        assert status == 0 and "Traceback" not in said
        assert 'strlen("\u00e4") = 2 (0x2)' in out + "".join(
            path.read_text() for path in tmp_path.iterdir())


def test_aggregation_keys_beyond_the_limits_are_dropped_and_counted(monkeypatch):
    program = ("BEGIN { @a[1] = count(); @a[2] = count(); @a[1] = count(); @b = quantize(5); } "
               "tick-2s { @b = quantize(6); @a[3] = count(); @a[2] = count(); } "
               "tick-3s { trunc(@a, 0); } tick-5s { @a[4] = count(); exit(0); }")
    words = ("-x", "droptags", "-x", "aggrate=500ms", "-q", "-n", program)
    status, out, said = run(*words)
    assert status == 0 and not said and "        4                1\n" in out
    monkeypatch.setattr(aggregations, "MAX_KEYS", 3)
    status, kept, said = run(*words)
    line = "dtrace: [DTRACEDROP_AGGREGATION] 1 aggregation key drop (too many keys)\n"
    # Key 3 is dropped first; after trunc(), key 3 fits and key 4 is dropped.
    assert status == 0 and said == 2 * line
    assert "        2                1\n        3                1\n" in kept
    assert "        4                1\n" not in kept
    with monkeypatch.context() as few:
        few.setattr(aggregations, "MAX_KEYS", 1 << 20)
        few.setattr(aggregations, "MAX_KEY_BYTES", 16)  # size of two keys in bytes; @b has no key
        assert run(*words) == (status, kept, said)
    monkeypatch.setattr(aggregations, "MAX_VALUES", 2)
    status, out, said = run(*words)
    assert line in said and "@" in kept and "@" not in out  # bars of a distribution consist of "@"
