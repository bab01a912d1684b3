import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrace.debug.debug_data import Sources
from dwarf._lines import LineError, LineTable
from dwarf.debug_file import DebugDataError, elf_file, sections
from dwarf.module_variables import opened
from images import catalog

SOURCE = Path(__file__).resolve().parents[2] / "images" / "teaching"


def line_section(image):
    return sections(image.file, (".debug_line",))[".debug_line"]


def test_functions_map_to_lines_of_their_source_file(image):
    sources = Sources(image)
    for name in ("strlen", "strcmp", "memcmp"):
        symbol = image.symbols.find(name)
        rows = sources.lines(symbol.address, symbol.address + symbol.size)
        assert rows[0][0] == symbol.address
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(rows))
        assert {Path(where.rpartition(":")[0]).name for _b, _e, where in rows} == {"string.c"}
        text = (SOURCE / "string.c").read_text().splitlines()
        line = int(rows[0][2].rpartition(":")[2])
        assert any(f"{name}(" in above for above in text[line - 6 : line])
        assert sources.line(symbol.address) == rows[0][2]


def test_line_table_rows_match_pyelftools(image):
    table, count = LineTable(line_section(image)), 0
    with opened(image.path, image.file.data) as elf:
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            theirs = [(e.state.address, e.state.file, e.state.line, bool(e.state.end_sequence))
                      for e in program.get_entries() if e.state is not None]
            at = unit.get_top_DIE().attributes["DW_AT_stmt_list"].value
            assert table.rows(at) == theirs
            count += len(theirs)
    assert count > 500


def test_lines_map_to_code_and_code_maps_to_lines(image):
    sources = Sources(image)
    symbol = image.symbols.find("strlen")
    where = sources.line(symbol.address)
    line = int(where.rpartition(":")[2])
    pieces = sources.code("string.c", line)
    assert any(low <= symbol.address < high for low, high in pieces)
    assert all(sources.line(low).endswith(f"string.c:{line}") for low, _high in pieces)
    assert sources.code("string.c", 99999) == []
    with pytest.raises(DebugDataError, match="no source file is named"):
        sources.code("ring.c", 1)


def test_an_address_without_line_information_has_no_line(image):
    assert Sources(image).line(0x10) == "?"
    assert Sources(image).lines(0x10, 0x20) == []
    assert LineTable(b"").find(1) is None and LineTable(b"").rows(0) == []


def test_code_without_a_line_is_said_to_be_after_the_code_before_it(image, monkeypatch):
    sources, symbol = Sources(image), image.symbols.find("strlen")
    rows = sources.lines(symbol.address, symbol.address + symbol.size)
    (_begin, _end, first), (begin, end, second) = rows[:2]
    assert sources.near(symbol.address, begin) == second
    known = [row for row in rows if row[0] != begin]
    monkeypatch.setattr(sources, "line", lambda address: "?")
    monkeypatch.setattr(sources, "lines", lambda low, high: [
        row for row in known if low <= row[0] < high])
    assert sources.near(symbol.address, begin) == sources.near(symbol.address, end - 1) == (
        f"after {first}")
    assert sources.near(begin, begin) == "?"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_reading_damaged_line_programs_succeeds_or_raises_line_error(data):
    content = bytearray(line_section(catalog.find("teaching/riscv64")))
    for _ in range(data.draw(st.integers(1, 40))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = LineTable(bytes(content))
        for start, _first, _end in table.programs():
            table.rows(start)
        table.find(0x80200000)
    except LineError as error:
        assert ".debug_line+" in str(error)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF" + bytes(60), b"text"])
def test_a_file_that_is_not_elf_is_refused(tmp_path, content):
    path = tmp_path / "kernel"
    path.write_bytes(content)
    with pytest.raises(DebugDataError, match=r"damaged|is empty"):
        sections(elf_file(path), (".debug_info",))
