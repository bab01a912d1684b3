import kinst_emu
from tests.pythondoc import DOC, first_example, typed_in


def test_the_examples_do_what_the_page_says(image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed_in(image, freebsd=False) == ""


def test_fifteen_lines_boot_a_kernel_and_print_a_register_at_each_firing(
        image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *rows, last = first_example(image).splitlines()
    assert len(rows) > 10 and all(row.startswith("kinst:kernel:strlen:") for row in rows)
    assert last.startswith(f"5 characters, {len(rows)} firings of ")


def test_every_public_name_has_an_example():
    text = DOC.read_text()
    for name in kinst_emu.__all__:
        assert f"kinst_emu.{name}" in text or f"`{name}`" in text, name


def test_public_names_are_those_that_there_are():
    assert sorted(kinst_emu._MODULES) == sorted(kinst_emu.__all__)
    for name in kinst_emu.__all__:
        assert getattr(kinst_emu, name) is not None
