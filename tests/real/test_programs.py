"""Tests that D programs can read kernel data, and that tracing does not change a boot's digest."""

import re

import pytest

from tests.conftest import real_kernel
from tests.dtrace.programs import command

ALLOCATE = "malloc(100, &M_TEMP, 2)"


def traced(arch, program, workload=ALLOCATE, *words):
    kernel = real_kernel(arch).path
    status, out, errors = command("-k", str(kernel), "-q", "--trap-path", "direct", *words, "-n",
                                program, "-c", workload)
    assert status == 0, errors
    return out


def test_arguments_have_the_kernels_types(arch):
    assert traced(arch, """
        fbt::malloc:entry { printf("%d %s", args[0], stringof(args[1]->ks_shortdesc)); }
        fbt::malloc:return { printf(" %d", args[1] != NULL); }""") == "100 temp 1\n"


def test_the_thread_and_its_process_are_read(arch):
    assert traced(arch, """
        fbt::malloc:entry { printf("%d %s", pid == curthread->td_proc->p_pid
            && tid == curthread->td_tid, execname); }""") == "1 kernel\n"


def test_the_libraries_translate_a_thread_and_its_process(arch):
    assert traced(arch, """
        fbt::malloc:entry { printf("%d %d %d %c %d", curpsinfo->pr_pid == pid,
            curpsinfo->pr_addr == (uintptr_t)curthread->td_proc, curlwpsinfo->pr_lwpid == tid,
            curlwpsinfo->pr_sname, regs[R_PC] - (uint64_t)&`malloc < 64); }
        BEGIN { sp = uregs[R_SP]; } ERROR { printf("error"); }""") == "1 1 1 O 1\n"


def test_arguments_of_inline_functions_are_readable(arch):
    zone, kind, size, item, result = traced(arch, """
        kinst::malloc_type_zone_allocated:entry {
            kind = stringof(args[0]->ks_shortdesc); size = args[1]; }
        kinst::item_ctor:entry { zone = stringof(args[0]->uz_name); item = args[5]; }
        fbt::malloc:return { printf("%s %s %d %p %p", zone, kind, size, item, arg1); }""").split()
    assert (zone, kind, size) == ("malloc-128", "temp", "128") and item == result


def test_an_error_says_where_an_argument_is_available_or_that_it_is_optimized_out(arch):
    _status, _out, errors = command(
        "-k", str(real_kernel(arch).path), "-q", "-n",
        "kinst::item_ctor:entry { trace(args[2]); }", "-c", ALLOCATE)
    # Whether the compiler keeps the argument anywhere depends on the kernel's options.
    assert re.search(r"args\[2\] \('size' of item_ctor\) is "
                     r"(available at |optimized out at all \d+)", errors)


def test_a_variable_of_an_unloaded_module_has_the_value_in_its_file(arch):
    kernel = real_kernel(arch).path
    if not (kernel.parent / "dtrace.ko").exists():
        pytest.skip("dtrace.ko is not beside the kernel")
    _status, out, errors = command("-k", str(kernel), "-q", "-c", ALLOCATE, "-n", """
        BEGIN { tracemem(`dtrace_zero, 4); trace(sizeof (dtrace`dtrace_zero));
                print(`dtrace_err_verbose); exit(0); }""")
    assert "00 00 00 00 " in out and out.endswith("256int 0\n\n")
    assert "dtrace: `dtrace_zero: using the value in dtrace.ko, which is not loaded" in errors


def test_a_d_program_can_walk_a_list_of_the_kernel(arch):
    out = traced(arch, """
        fbt::malloc:entry { this->m = `kmemstatistics; n = 0; }
        fbt::malloc:entry /this->m != NULL/ { printf("%s ", stringof(this->m->ks_shortdesc));
            this->m = this->m->ks_next; }
        fbt::malloc:entry /this->m != NULL/ { printf("%s", stringof(this->m->ks_shortdesc)); }""")
    first, second = out.split(" ", 1)
    assert first and second.strip()


def test_functions_have_addresses(arch):
    assert traced(arch, """
        fbt::malloc:entry { printf("%a %d", &`malloc, &`malloc == (void *)`malloc); }
        """) == "kernel`malloc 1\n"


def test_latencies_are_in_virtual_nanoseconds(arch):
    outs = {traced(arch, """
        fbt::malloc:entry { self->began = timestamp; }
        fbt::malloc:return /self->began/ { @ = sum(timestamp - self->began); self->began = 0; }
        END { printa("%@d", @); }""") for _ in range(2)}
    assert len(outs) == 1 and 10 < int(outs.pop()) < 100_000


@pytest.mark.parametrize("path", ["guest", "direct"])
def test_tracing_a_boot_does_not_change_it(arch, path):
    kernel = str(real_kernel(arch).path)
    plain = command("-k", kernel, "-q", "--digest", "-n", "BEGIN{}", "-c", "boot")[1]
    status, out, errors = command(
        "-k", kernel, "-q", "--digest", "--trap-path", path, "-c", "boot", "-n", """
        fbt::malloc:entry { @[stringof(args[1]->ks_shortdesc)] = quantize(arg0);
            @s[stack(3)] = count(); self->size = arg0; sizes[arg0] = timestamp; }
        fbt::malloc:return { @r[self->size] = count(); }""")
    assert status == 0, errors
    assert plain.splitlines()[-1].startswith("digest")
    assert out.splitlines()[-1] == plain.splitlines()[-1]


def test_a_stack_shows_inline_functions_with_the_option_stackinline(arch):
    program = "kinst::item_ctor:entry { stack(2); @[stack(2)] = count(); }"
    plain, shown = traced(arch, program), traced(arch, program, ALLOCATE, "-x", "stackinline")
    assert "inlined" not in plain and plain.count("kernel`malloc+0x") == 2
    frames = [line.split() for line in shown.splitlines() if "kernel`" in line]
    assert [f[0].partition("+")[0] for f in frames] == [
        "kernel`item_ctor", "kernel`cache_alloc_item", "kernel`uma_zalloc_arg",
        "kernel`malloc"] * 2
    assert [f[1] for f in frames[:2]] == ["[inlined]"] * 2
    assert all("/vm/uma_core.c:" in f[-1] for f in frames[:3])
