import struct
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrace.debug.debug_index import debug_index
from dwarf._scan import PIECE_FORMAT, RECORD_FORMAT, Scan, ScanError
from dwarf.debug_file import DebugDataError, debug_file, elf_file, sections
from dwarf.files import file_table
from dwarf.index import NAMES, DebugIndex, build, load
from emu.elf.image import load_image
from images import catalog
from tests.dwarfwriter import abbrev, uleb, unit
from tests.elfwriter import Elf

ABBREVS = (
    abbrev(1, 0x11, 1, (0x11, 0x01), (0x03, 0x08)) + abbrev(2, 0x2E, 0, (0x03, 0x08), (0x20, 0x0B))
    + abbrev(3, 0x2E, 1, (0x03, 0x08), (0x11, 0x01), (0x12, 0x06))
    + abbrev(4, 0x1D, 0, (0x31, 0x13), (0x11, 0x01), (0x12, 0x06), (0x59, 0x0B))
    + abbrev(5, 0x1D, 0, (0x31, 0x13), (0x55, 0x17)) + b"\0"
)


def tree(version, ranges_at=0):
    """Return a unit at 0x1000 with a function `caller` that contains two copies of `tiny`.

    :param version: DWARF version (4 or 5).
    :param ranges_at: offset of the range list of the second copy.
    """
    header = 12 if version >= 5 else 11
    entry = b"\1" + struct.pack("<Q", 0x1000) + b"f.c\0"
    tiny = header + len(entry)
    body = entry + b"\2tiny\0\3"
    body += b"\3caller\0" + struct.pack("<QI", 0x1100, 0x80)
    body += b"\4" + struct.pack("<IQI", tiny, 0x1110, 4) + b"\x2a"
    body += b"\5" + struct.pack("<II", tiny, ranges_at)
    return unit(version, body + b"\0\0")


RANGES_4 = struct.pack("<6Q", 0x120, 0x128, (1 << 64) - 1, 0x2000, 0x8, 0x10) + bytes(16)
RANGES_5 = (b"\4" + uleb(0x120) + uleb(0x128) + b"\7" + struct.pack("<Q", 0x2008) + uleb(8)
            + b"\5" + struct.pack("<Q", 0x3000) + b"\4" + uleb(1) + uleb(2) + b"\6"
            + struct.pack("<QQ", 0x4000, 0x4001) + b"\0")


@pytest.mark.parametrize("version, ranges, lists, expected", [
    (4, RANGES_4, b"", [(0x1120, 0x1128), (0x2008, 0x2010)]),
    (5, b"", RANGES_5, [(0x1120, 0x1128), (0x2008, 0x2010), (0x3001, 0x3002), (0x4000, 0x4001)]),
])
def test_inline_copies_are_found_with_dwarf_4_and_dwarf_5_ranges(version, ranges, lists, expected):
    scan = Scan(tree(version), ABBREVS, ranges, lists, b"", b"")
    records, pieces, *_ = scan.tables()
    rows = list(struct.iter_unpack(RECORD_FORMAT, records))
    found = list(struct.iter_unpack(PIECE_FORMAT, pieces))
    assert [row[13] for row in rows] == [0x2E, 0x2E, 0x1D, 0x1D]
    assert rows[0][14] == 3 and rows[2][8] == 0x2A  # DW_AT_inline, DW_AT_call_line
    assert rows[2][3] == rows[3][3] == 1 and rows[2][12] == rows[3][12] == 0
    assert found[rows[1][5]] == (0x1100, 0x1180) and found[rows[2][5]] == (0x1110, 0x1114)
    assert found[rows[3][5] :] == expected


@pytest.mark.parametrize("data, says", [
    (b"\1", "truncated unit header"), (b"\xff\xff\0\0\4\0", "longer than its section"),
    (struct.pack("<IHIB", 7, 9, 0, 8), "version of a unit is not 2 to 5"),
    (struct.pack("<IHIB", 7, 4, 0, 3), "neither 4 nor 8 bytes"),
    (unit(4, b"\x63"), "undefined abbreviation code"),
    (unit(4, b"\1\0"), "truncated"), (unit(4, b"\3" * 10), "truncated"),
])
def test_inconsistent_debug_data_is_refused_with_its_offset(data, says):
    with pytest.raises(ScanError, match=says) as error:
        Scan(data, ABBREVS, b"", b"", b"", b"")
    assert ".debug_info+0x" in str(error.value)


def test_a_cycle_of_abstract_origins_does_not_hang():
    body = b"\1" + bytes(8) + b"f\0"
    at = 11 + len(body)
    body += b"\5" + struct.pack("<II", at, 0) + b"\0"
    records, *_ = Scan(unit(4, body), ABBREVS, bytes(16), b"", b"", b"").tables()
    assert len(records) == struct.calcsize(RECORD_FORMAT)


def test_entries_nested_too_deep_are_refused():
    deep = unit(4, b"\3f\0" + bytes(12) + (b"\3g\0" + bytes(12)) * 300)
    with pytest.raises(ScanError, match="nested too deep"):
        Scan(deep, ABBREVS, b"", b"", b"", b"")


def test_too_many_records_are_refused():
    body = b"\2x\0\3" * 10_000
    with pytest.raises(ScanError, match="too many functions"):
        Scan(unit(4, body), ABBREVS, b"", b"", b"", b"", 100)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_scanning_damaged_sections_succeeds_or_raises_scan_error(data):
    path = catalog.find("teaching/amd64").path
    found = [bytearray(s) for s in (sections(elf_file(path), NAMES).get(n, b"") for n in NAMES[:6])]
    for _ in range(data.draw(st.integers(1, 30))):
        section = data.draw(st.sampled_from([s for s in found if s]))
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    try:
        Scan(*map(bytes, found), 100_000).tables()  # type: ignore[call-arg]
    except ScanError as error:
        assert ".debug_info+" in str(error)


def test_an_index_is_cached_and_a_broken_cache_is_rebuilt(image, tmp_path):
    cache = tmp_path / "sub" / "index"
    first = load(image.file, cache)
    names = list(first.names())
    assert names == sorted(names) and "strlen" in names
    content = cache.read_bytes()
    assert list(load(image.file, cache).names()) == names
    for broken in (b"", b"text", content[:-1], content[:40]):
        cache.write_bytes(broken)
        assert list(load(image.file, cache).names()) == names
        assert cache.read_bytes() == content


def test_functions_in_the_index_match_the_symbol_table(image):
    index = DebugIndex(build(image.file), image.path)
    for name in ("strlen", "memcmp", "crc32"):
        symbol = image.symbols.find(name)
        (function,) = [f for f in index.named(name) if f.pieces and not f.inlined]
        assert function.pieces == ((symbol.address, symbol.address + symbol.size),)
        assert index.function(function.number) == function
    assert index.named("no such function") == []


def test_a_kernel_without_debug_data_is_reported(tmp_path):
    path = tmp_path / "kernel"
    path.write_bytes(Elf().build())
    assert debug_file(elf_file(path)) is None
    with pytest.raises(DebugDataError, match=r"put the matching kernel\.debug in its directory"):
        build(elf_file(path))


@pytest.mark.parametrize("table", [b"", b"\1\0\0\0", struct.pack("<IH", 100, 77)])
def test_a_damaged_line_table_is_refused(table):
    with pytest.raises(DebugDataError, match="line table"):
        file_table(table, b"", b"", 0)


def test_file_tables_list_the_source_files(image):
    index = DebugIndex(build(image.file), image.path)
    (function,) = [f for f in index.named("strlen") if f.pieces]
    found = sections(image.file, (".debug_line", ".debug_line_str", ".debug_str"))
    line, line_str, string = (found.get(n, b"")
                              for n in (".debug_line", ".debug_line_str", ".debug_str"))
    files = file_table(line, line_str, string, index.line_table(function.unit))
    assert "string.c" in {Path(name).name for name in files.values()}


def test_debug_data_is_found_by_build_id(tmp_path, monkeypatch):
    """Distributions store a debug file under its build ID, as in .build-id/12/3456.debug."""
    monkeypatch.setattr("dwarf.debug_file.SYSTEM", tmp_path / "debug")
    kernel = tmp_path / "kernel"
    kernel.write_bytes(Elf(build_id=b"\x12\x34\x56").build())
    assert debug_file(elf_file(kernel)) is None
    separate = tmp_path / "debug" / ".build-id" / "12" / "3456.debug"
    separate.parent.mkdir(parents=True)
    separate.write_bytes(Elf(others={".debug_info": b"x"}).build())
    assert debug_file(elf_file(kernel)).path == separate


def test_a_debug_file_of_another_build_is_refused(tmp_path):
    kernel, separate = tmp_path / "kernel", tmp_path / "kernel.debug"
    kernel.write_bytes(Elf(build_id=b"\x12\x34").build())
    separate.write_bytes(Elf(build_id=b"\x12\x35", others={".debug_info": b"x"}).build())
    with pytest.raises(DebugDataError, match="a different build than"):
        debug_file(elf_file(kernel))
    separate.write_bytes(Elf(others={".debug_info": b"x"}).build())
    link = b"kernel.debug\0\0\0\0"
    kernel.write_bytes(Elf(others={".gnu_debuglink": link + b"\1\2\3\4"}).build())
    with pytest.raises(DebugDataError, match="a different build than"):
        debug_file(elf_file(kernel))
    checksum = struct.pack("<I", zlib.crc32(separate.read_bytes()))
    kernel.write_bytes(Elf(others={".gnu_debuglink": link + checksum}).build())
    assert debug_file(elf_file(kernel)).path == separate


def test_an_index_with_one_wrong_byte_is_rebuilt(image, tmp_path):
    cache = tmp_path / "index"
    first = load(image.file, cache).named("strlen")
    data = bytearray(cache.read_bytes())
    for at in (60, len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        cache.write_bytes(damaged)
        assert load(image.file, cache).named("strlen") == first and cache.read_bytes() == data


def test_each_debug_file_has_an_index_of_its_own(tmp_path):
    """An offset into one debug file is meaningless in another debug file."""
    kernel = tmp_path / "kernel"
    kernel.write_bytes(Elf().build())
    separate = tmp_path / "kernel.debug"
    for names in (("one", "two"), ("other",)):
        body = b"\1" + bytes(8) + b"f.c\0" + b"".join(b"\2" + n.encode() + b"\0\3" for n in names)
        separate.write_bytes(Elf(others={".debug_info": unit(4, body + b"\0"),
                                         ".debug_abbrev": ABBREVS}).build())
        index = debug_index(load_image(kernel))
        assert sorted(index.names()) == sorted(names)


@pytest.mark.parametrize("kind, pack", [
    (1, zlib.compress), (2, zstandard.ZstdCompressor().compress)])
def test_compressed_sections_are_read_and_damaged_ones_refused(tmp_path, kind, pack):
    body = b"\1" + bytes(8) + b"f.c\0\2tiny\0\3\0"
    plain = unit(4, body)

    def kernel(size, packed):
        path = tmp_path / "kernel"
        path.write_bytes(Elf(others={
            ".debug_info": struct.pack("<IIQQ", kind, 0, size, 1) + packed,
            ".debug_abbrev": ABBREVS}, compressed=(".debug_info",)).build())
        return path

    index = DebugIndex(build(elf_file(kernel(len(plain), pack(plain)))), tmp_path)
    assert list(index.names()) == ["tiny"]
    for size, packed in ((len(plain) + 1, pack(plain)), (len(plain), b"\0" + pack(plain)[1:]),
                         (1 << 29, pack(bytes(1 << 20))), (1 << 40, pack(plain))):
        with pytest.raises(DebugDataError, match=r"debug_info|damaged"):
            build(elf_file(kernel(size, packed)))


def test_debug_data_that_takes_too_long_to_scan_is_refused():
    """Scan a million entries, each with a hundred attributes that occupy no bytes."""
    flags = abbrev(1, 0x11, 1, (0x03, 0x08)) + abbrev(2, 0x34, 0, *[(0x3F, 0x19)] * 100) + b"\0"
    body = b"\1f.c\0" + b"\2" * 1_000_000 + b"\0"
    with pytest.raises(ScanError, match="too much work"):
        Scan(unit(4, body), flags, b"", b"", b"", b"")
