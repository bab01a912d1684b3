"""Tests of the reader of .eh_frame; pyelftools reads the same sections."""

import contextlib
import io
import struct

import pytest
from elftools.dwarf.callframe import FDE, CallFrameInfo
from elftools.dwarf.structs import DWARFStructs
from hypothesis import given
from hypothesis import strategies as st

from dwarf.debug_file import DebugDataError
from dwarf.eh_frames import EhFrames
from dwarf.frames import Rule

ADDRESS = 0x5000  # of the section
CODE = 0x2000
RELATIVE_32, ABSOLUTE = 0x1B, 0  # DW_EH_PE_pcrel | DW_EH_PE_sdata4, DW_EH_PE_absptr
# CFA = r7 + 8, r16 at CFA - 8; then, four bytes later: CFA = r7 + 16, r6 at CFA - 16
INITIAL, BODY = b"\x0c\x07\x08\x90\x01", b"\x44\x0e\x10\x86\x02"
UNDEFINED = b"\x07\x10"  # r16


def entry(content):
    content += bytes(-len(content) % 8 + 4)
    return struct.pack("<I", len(content)) + content


def cie(letters=b"zR", data=bytes((RELATIVE_32,)), version=1, code=INITIAL):
    returns = b"\x10"
    size = bytes((len(data),)) if letters.startswith(b"z") else b""
    return entry(struct.pack("<IB", 0, version) + letters + b"\0\x01\x78" + returns + size + data
                 + code)


def fde(at, back, low=CODE, size=16, encoding=RELATIVE_32, code=BODY, augmented=True):
    """Return an FDE that begins at an offset of the section, for a CIE at another one."""
    head = struct.pack("<I", at + 4 - back & 0xFFFFFFFF)
    if encoding == RELATIVE_32:
        head += struct.pack("<iI", low - (ADDRESS + at + 8), size)
    else:
        head += struct.pack("<QQ", low, size)
    return entry(head + (b"\0" if augmented else b"") + code)


def section(common=None, **options):
    common = cie() if common is None else common
    return common + fde(len(common), 0, **options) + bytes(4)


def theirs(content):
    """Return the rows that pyelftools finds: (address, rule)."""
    info = CallFrameInfo(io.BytesIO(content), len(content), ADDRESS, DWARFStructs(
        little_endian=True, dwarf_format=32, address_size=8), for_eh_frame=True)
    rows = []
    for one in info.get_entries():
        if isinstance(one, FDE):
            for row in one.get_decoded().table:
                saved = {n: how.arg for n, how in row.items()
                         if isinstance(n, int) and how.type == "OFFSET"}
                rows.append((row["pc"], row["cfa"].reg, row["cfa"].offset, saved))
    return rows


@pytest.mark.parametrize("content", [
    section(), section(size=5), section(cie(version=3)),
    section(cie(b"zPLR", struct.pack("<BQBB", 0, 77, 0x1B, RELATIVE_32)), augmented=False,
            code=b"\x04\0\0\0\0" + BODY),
    section(cie(b"zR", bytes((ABSOLUTE,))), encoding=ABSOLUTE),
])
def test_rules_are_those_that_pyelftools_finds(content):
    frames, found = EhFrames(content, ADDRESS), theirs(content)
    assert found[0][:3] == (CODE, 7, 8)
    for address, base, offset, saved in found:
        assert frames.rule(address) == Rule(base, offset, saved, 16)
    assert frames.rule(CODE - 1) is None


def test_entries_without_augmentation_are_read():
    frames = EhFrames(section(cie(b"", b""), encoding=ABSOLUTE, augmented=False), ADDRESS)
    assert frames.rule(CODE + 4) == Rule(7, 16, {16: -8, 6: -16}, 16)


def test_the_section_ends_with_a_length_of_zero():
    content = section()
    frames = EhFrames(content + fde(len(content), 0, low=9 * CODE), ADDRESS)
    assert frames.rule(CODE) is not None and frames.rule(9 * CODE) is None


def test_the_last_frame_and_signal_frames_are_known():
    last = EhFrames(section(code=UNDEFINED), ADDRESS).rule(CODE)
    assert last is not None and last.ends and not last.interrupted
    signal = EhFrames(section(cie(b"zRS")), ADDRESS).rule(CODE + 4)
    assert signal is not None and signal.interrupted and not signal.ends


def test_a_frame_that_an_expression_computes_has_no_rule():
    frames = EhFrames(section(code=b"\x44\x0f\x01\x30"), ADDRESS)  # DW_OP_lit0
    assert frames.rule(CODE) is not None and frames.rule(CODE + 4) is None


@pytest.mark.parametrize("content, why", [
    (section()[:-9], "length"), (b"\xff\xff\xff\xff" + bytes(20), "length"),
    (cie() + fde(len(cie()), 8), "does not refer to a CIE"),
    (cie() + fde(len(cie()), -100), "CIE"),
    (section(cie(b"zR", b"\x50")), "encoding 0x50"), (section(cie(b"zR", b"\x01")), "encoding 0x1"),
    (section(cie(b"eh", b"")), "augmentation"), (section(cie(version=2)), "CIE"),
    (struct.pack("<II", 3, 0), "length"),
])
def test_a_damaged_section_is_refused(content, why):
    with pytest.raises(DebugDataError, match=rf"damaged \.eh_frame at 0x[0-9a-f]+: .*{why}"):
        EhFrames(content, ADDRESS)


def test_functions_are_found_by_their_addresses():
    frames = EhFrames(section(size=16), ADDRESS)
    assert frames.ranges() == [(CODE, CODE + 16)] == [frames.range_at(CODE + 15)]
    assert frames.range_at(CODE - 1) is None and frames.range_at(CODE + 16) is None


def test_an_entry_with_many_rows_of_many_registers_is_refused():
    """pyelftools would copy the rules of all registers for each row."""
    rules = b"".join(b"\x05" + bytes((n & 0x7F | 0x80, n >> 7)) + b"\x01" for n in range(2000))
    content = section(code=rules + b"\x41" * 8000)
    assert len(content) < 1 << 15
    with pytest.raises(DebugDataError, match=r"damaged \.eh_frame at .*values of registers"):
        EhFrames(content, ADDRESS).rule(CODE)


def test_a_long_entry_of_few_registers_is_read():
    code = b"".join(bytes((0x41 + n % 62, 0x0E, 16 + n % 33)) for n in range(3300)) + b"\x86\x02"
    assert EhFrames(section(code=code, size=1 << 20), ADDRESS).rule(CODE) is not None


def test_many_cies_are_refused():
    content = b""
    for _ in range(5000):
        content += cie()
        content += fde(len(content), len(content) - len(cie()))
    with pytest.raises(DebugDataError, match="more than 4096 CIEs"):
        EhFrames(content, ADDRESS)


@given(st.data())
def test_every_damaged_section_is_read_or_refused(data):
    content = bytearray(section(cie(b"zPLR", struct.pack("<BQBB", 0, 77, 0x1B, RELATIVE_32)),
                                augmented=False, code=b"\x04\0\0\0\0" + BODY))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DebugDataError):
        frames = EhFrames(bytes(content[: data.draw(st.integers(0, len(content)))]), ADDRESS)
        for address in range(CODE, CODE + 16):
            with contextlib.suppress(DebugDataError):
                frames.rule(address)
