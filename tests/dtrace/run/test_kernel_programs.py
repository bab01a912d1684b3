"""Tests of D programs on the teaching kernels: arguments, stacks, times and transparency."""

import pytest

from tests.dtrace.programs import command, run


def traced(arch, program, workload="fibonacci(5)", *words):
    return run("-k", f"teaching/{arch}", "-q", *words, "-n", program, "-c", workload)


def test_fbt_probes_see_arguments_and_return_values(arch):
    status, out, said = traced(arch, """
        fbt::strlen:entry { printf("%s ", stringof(arg0)); }
        fbt::strlen:return { printf("%d", arg1); }""", 'strlen("hello")')
    assert (status, out, said) == (0, "hello 5\n", "")


def test_thread_local_variables_can_measure_latency(arch):
    status, out, said = traced(arch, """
        fbt::fibonacci:entry { self->began[arg0] = timestamp; calls++; }
        fbt::fibonacci:return { @ = count(); }
        END { printf("%d ", calls); printa("%@d", @); }""")
    assert (status, said) == (0, "")
    calls, returns = out.split()[:2]
    assert int(calls) == int(returns) > 5


def test_stacks_can_be_aggregation_keys(arch):
    _status, out, said = traced(arch, "fbt::fibonacci:entry { @[stack(2)] = count(); }",
                                "fibonacci(4)")
    keys = [word.partition("+")[0] for word in out.split()][-6:]
    # There are five calls: one from outside, two by the outermost call, and two by deeper calls.
    fibonacci = "kernel`fibonacci"
    assert not said and keys == ["1", fibonacci, "2", fibonacci, fibonacci, "2"], out


def test_kinst_probes_run_clauses(arch):
    _status, out, said = traced(
        arch, "kinst::strlen: { @[probefunc, probename] = count(); }", 'strlen("abc")')
    assert not said and out.count("strlen") > 4


def test_guest_memory_can_be_read_and_bad_addresses_fault(arch):
    _status, out, said = traced(arch, """
        fbt::strlen:entry { printf("%c", *(char *)(arg0 + 1)); }
        fbt::strlen:entry { trace(*(int *)0x700000000000); }""", 'strlen("xyz")')
    assert out.startswith("y") and "invalid address (0x700000000000)" in said


@pytest.mark.parametrize("path", ["guest", "direct"])
def test_tracing_does_not_change_a_boot(arch, path):
    plain = command("-k", f"teaching/{arch}", "-q", "--digest", "-n", "BEGIN{}", "-c", "boot")[1]
    status, out, _said = command(
        "-k", f"teaching/{arch}", "-q", "--digest", "--trap-path", path, "-n",
        "fbt:::entry { @[probefunc] = count(); @s[stack()] = quantize(timestamp); self->x = arg0; "
        "x[probefunc] = arg1; } fbt:::return { trace(stringof(arg1)); }", "-c", "boot")
    assert status == 0
    assert out.splitlines()[-1] == plain.splitlines()[-1] and "digest" in plain


def test_timers_fire_in_guest_time_and_do_not_change_the_run(arch):
    plain = command("-k", f"teaching/{arch}", "-q", "--digest", "-n", "BEGIN{}", "-c", "boot")[1]
    found = {command(
        "-k", f"teaching/{arch}", "-q", "--digest", "-c", "boot", "-n", """
        tick-1ms { n++; @[func(arg0)] = count(); } fbt::strlen:entry { m++; }
        END { printf("%d", n > 3); printa("%a %@d ", @); }""")[1] for _ in range(2)}
    assert len(found) == 1
    out = found.pop()
    assert "kernel`" in out and out.splitlines()[-1] == plain.splitlines()[-1]


def test_exit_ends_the_trace(arch):
    status, out, _said = traced(arch, """
        fbt::fibonacci:entry /n++ == 3/ { exit(7); } fbt::fibonacci:entry { m++; }
        END { trace(m); }""")
    assert (status, out) == (7, "3\n")


def test_an_unknown_function_is_reported():
    status, _out, said = traced("amd64", "fbt::nosuch:entry { trace(1); }")
    assert status == 1 and "the kernel has no function 'nosuch'" in said
    assert len(said.splitlines()) == 1


def test_a_function_that_is_always_inlined_is_reported(arch):
    for description in ("fbt::charge:entry", "kinst::charge:"):
        status, _out, said = traced(arch, f"{description} {{ trace(1); }}")
        assert status == 1 and "5 inline copies; probe them with kinst::charge:entry and" in said


def test_a_program_without_a_workload_has_nothing_to_run():
    status, _out, said = run("-k", "teaching/amd64", "-n", "fbt::strlen:entry { trace(1); }")
    assert status == 1 and said.startswith("dtrace: nothing to run")


@pytest.mark.parametrize(("provider", "status"), [
    ("kinst", 0), ("fbt", 0), ("profile", 0), ("pid1", 1), ("nosuch", 1)])
def test_depends_on_provider_accepts_only_existing_providers(provider, status):
    ran = command("-k", "teaching/amd64", "-e", "-n",
                  f"#pragma D depends_on provider {provider}\nBEGIN {{ }}")
    assert ran[0] == status
    assert (f"program requires provider {provider}" in ran[2]) == bool(status)
