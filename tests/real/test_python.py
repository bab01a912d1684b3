from tests.conftest import real_kernel
from tests.pythondoc import first_example, typed_in


def test_the_examples_of_the_python_page_do_what_it_says(arch, tmp_path, monkeypatch):
    kernel = real_kernel(arch)
    monkeypatch.chdir(tmp_path)
    assert typed_in(kernel, freebsd=True) == ""


def test_fifteen_lines_print_a_register_at_each_firing(arch, tmp_path, monkeypatch):
    kernel = real_kernel(arch)
    monkeypatch.chdir(tmp_path)
    *rows, last = first_example(kernel).splitlines()
    assert all(row.startswith("kinst:kernel:strlen:") for row in rows)
    assert last.startswith(f"5 characters, {len(rows)} firings of ")
