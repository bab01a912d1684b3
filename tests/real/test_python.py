"""Tests that the examples of docs/python.md work on FreeBSD kernels."""

import re

from tests.conftest import real_kernel
from tests.pythondoc import first_example, typed_in


def test_the_examples_of_the_python_page_print_the_output_shown_there(arch, tmp_path, monkeypatch):
    kernel = real_kernel(arch)
    monkeypatch.chdir(tmp_path)
    assert typed_in(kernel, freebsd=True) == ""


def test_the_first_example_prints_a_register_at_each_firing(arch, tmp_path, monkeypatch):
    kernel = real_kernel(arch)
    monkeypatch.chdir(tmp_path)
    *rows, last = first_example(kernel).splitlines()
    assert len(rows) > 10
    assert all(re.fullmatch(r"kinst:kernel:strlen:\d+: (rdi|x0|a0) = 0x[0-9a-f]+", row)
               for row in rows), rows
    assert last.startswith(f"5 characters, {len(rows)} firings of ")
