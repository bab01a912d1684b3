"""Tests of ``local->NAME``, the variables of the probed code, on the teaching kernels."""

import pytest

from images import catalog
from tests.dtrace.programs import run

CALL = 'strtoul("-12z", 0, 10)'


def traced(arch, program, call=CALL):
    return run("-k", f"teaching/{arch}", "-q", "-n", program, "-c", call)


def test_a_variable_has_its_value_at_every_instruction_where_it_is_known(arch):
    status, out, said = traced(
        arch, "kinst::strtoul: { @b[local->base] = count(); @v[local->value] = count(); }"
              " END { printa(\"b%d \", @b); printa(\"v%d \", @v); }")
    found = out.split()
    assert status == 0 and "b10" in found and {"v0", "v1", "v12"} <= set(found), (out, said)
    assert {word for word in found if word[0] == "b"} == {"b10"}


def test_parameters_and_variables_have_their_types(arch):
    status, out, said = traced(
        arch, "fbt::strtoul:entry { printf(\"%s\", stringof(local->text)); exit(0); }")
    assert (status, out.strip()) == (0, "-12z"), said


@pytest.mark.parametrize("program, says", [
    ("kinst::strtoul:0 { trace(local->digit); }", "local->digit is optimized out at"),
    ("kinst::strtoul:0 { trace(local->bas); }", "has no such variable; did you mean base?"),
    ("kinst::strtoul:0 { trace(local->zzzzz); }", "has no such variable; in scope: base, "),
    ("BEGIN { trace(local->base); }", "is not at an instruction of the kernel's functions"),
    ("kinst::strtoul:0 { trace(local); }", "failed to resolve local"),
    ("kinst::strtoul:0 { local->base = 1; }", ""),
])
def test_a_variable_that_cannot_be_read_is_an_error_that_says_why(arch, program, says):
    status, _out, said = traced(arch, program)
    assert status == 1 and says in said and len(said.strip().splitlines()) == 1, said


def test_a_program_may_define_a_variable_with_the_name_local():
    status, out, said = run("-q", "-n", "BEGIN { local = 5; trace(local); exit(0); }")
    assert (status, out.strip()) == (0, "5"), said


def test_a_kernel_without_debug_data_has_no_local_variables(arch, tmp_path):
    kernel = tmp_path / "kernel"
    kernel.write_bytes(catalog.find(f"teaching/{arch}").path.read_bytes().replace(
        b".debug_", b".other_"))
    status, _out, said = run("-k", str(kernel), "-q", "-n",
                             "kinst::strtoul:0 { trace(local->base); }", "-c", CALL)
    assert status == 1 and "local variables need DWARF debug data" in said, said
