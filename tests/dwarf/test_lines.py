from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf.lines import DebugDataError, Line, source_lines
from images import catalog

SOURCE = Path(__file__).resolve().parents[2] / "images" / "teaching"


def test_every_function_of_a_source_file_is_of_lines_of_that_file(image):
    for name in ("strlen", "strcmp", "memcmp"):
        symbol = image.symbols.find(name)
        lines = source_lines(image.path, symbol.address, symbol.address + symbol.size)
        assert lines[0].address == symbol.address
        assert [one.address for one in lines] == sorted({one.address for one in lines})
        assert {Path(one.file).name for one in lines} == {"string.c"}
        text = (SOURCE / "string.c").read_text().splitlines()
        assert any(f"{name}(" in line for line in text[lines[0].line - 6 : lines[0].line])


def test_code_without_a_line_and_files_without_debug_data_have_none(image, tmp_path):
    assert source_lines(image.path, 0x10, 0x20) == []
    assert source_lines(tmp_path / "absent", 0, 100) == []


def test_debug_data_beside_the_kernel_is_found(image, tmp_path):
    (tmp_path / "kernel.debug").write_bytes(image.path.read_bytes())
    symbol = image.symbols.find("strlen")
    found = source_lines(tmp_path / "kernel", symbol.address, symbol.address + symbol.size)
    assert found and isinstance(found[0], Line)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_debug_data_is_refused_or_read(tmp_path_factory, data):
    image = catalog.find("teaching/riscv64")
    content = bytearray(image.path.read_bytes())
    for _ in range(data.draw(st.integers(1, 40))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "kernel"
    path.write_bytes(content)
    symbol = image.symbols.find("strlen")
    try:
        source_lines(path, symbol.address, symbol.address + symbol.size)
    except DebugDataError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF" + bytes(60), b"text"])
def test_what_is_no_elf_file_is_refused(tmp_path, content):
    path = tmp_path / "kernel"
    path.write_bytes(content)
    with pytest.raises(DebugDataError, match="damaged"):
        source_lines(path, 0, 100)
