"""Tests of pcap files."""

import struct

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.host.errors import KinstError
from emu.network.capture import MAX_FRAMES, read_frames, write_frames

FRAMES = [(0, b"a" * 14), (5, b"b" * 60), (3_000_000_007, b"c" * 1518)]


def pcap(frames, order="<", magic=0xA1B2C3D4, link=1, unit=1000):
    """Return a pcap file with (nanoseconds, frame, original length) rows."""
    head = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    return head + b"".join(
        struct.pack(order + "IIII", when // 10**9, when % 10**9 // unit, len(frame), whole) + frame
        for when, frame, whole in frames)


def test_what_was_written_is_read_and_other_programs_can_read_it(tmp_path):
    path = tmp_path / "frames.pcap"
    write_frames(path, [(when + 7, frame) for when, frame in FRAMES])
    assert read_frames(path) == FRAMES
    with path.open("rb") as file:
        reader = dpkt.pcap.Reader(file)
        assert reader.datalink() == dpkt.pcap.DLT_EN10MB
        assert [bytes(frame) for _when, frame in reader] == [frame for _when, frame in FRAMES]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic, unit", [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_both_byte_orders_and_both_units_are_read(tmp_path, order, magic, unit):
    path = tmp_path / "frames.pcap"
    start = 1_700_000_000_123_456_000
    path.write_bytes(pcap([(start + 2000 * i, b"x" * (20 + i), 20 + i) for i in range(3)], order,
                          magic, unit=unit))
    assert read_frames(path) == [(2000 * i, b"x" * (20 + i)) for i in range(3)]


def test_a_file_without_frames_is_valid(tmp_path):
    path = tmp_path / "frames.pcap"
    path.write_bytes(pcap([]))
    assert read_frames(path) == []


@pytest.mark.parametrize("content, says", [
    (b"", "is empty"), (b"x", "is not a pcap file"), (b"\x0a\x0d\x0d\x0a" * 10, "editcap -F pcap"),
    (pcap([])[:20], "is not a pcap file"), (pcap([], link=101), "link type 101"),
    (pcap([(0, b"x" * 20, 20)])[:-1], "frame 1 has 19 of 20 bytes"),
    (pcap([(0, b"x" * 20, 20)]) + b"12345", "is truncated in frame 2"),
    (pcap([(0, b"x" * 20, 90)]), "frame 1 has 20 of 90 bytes"),
    (pcap([(0, b"x" * 13, 13)]), "14 to 1518 bytes"),
    (pcap([(0, b"x" * 1519, 1519)]), "14 to 1518 bytes"),
    (pcap([(5000, b"x" * 20, 20), (4000, b"x" * 20, 20)]), "frame 2 is older"),
    (pcap([(0, b"x" * 14, 14)] * (MAX_FRAMES + 1)), f"more than {MAX_FRAMES} frames"),
], ids=range(12))
def test_what_is_no_pcap_file_is_named(tmp_path, content, says):
    path = tmp_path / "frames.pcap"
    path.write_bytes(content)
    with pytest.raises(KinstError) as error:
        read_frames(path)
    assert says in str(error.value) and str(path) in str(error.value)


@given(st.binary(max_size=300), st.integers(0, 23))
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, noise, keep):
    path = tmp_path_factory.mktemp("pcap") / "frames.pcap"
    path.write_bytes(pcap([])[: 24 - keep] + noise + b"\0")
    try:
        frames = read_frames(path)
    except KinstError:
        return
    assert all(14 <= len(frame) <= 1518 for _when, frame in frames)
