"""Frames in pcap files (draft-ietf-opsawg-pcap).

dpkt reads these files, too, but rounds times and does not report a file that was cut off.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.input_file import taken
from emu.network.link import MAX_FRAME, MIN_FRAME

MAX_FILE = 1 << 30  # maximum size of a pcap file in bytes
MAX_FRAMES = 100_000
ETHERNET = 1  # link type
SECOND = 10**9
HEAD, ROW = "IHHiIII", "IIII"  # magic, version, zone, accuracy, snap length, link; time, sizes
NANO, MICRO = 0xA1B23C4D, 0xA1B2C3D4  # magic of files with nanoseconds or microseconds
PCAPNG = 0x0A0D0D0A
SHAPES = {struct.pack(f"{order}I", magic): (order, unit)
          for order in "<>" for magic, unit in ((NANO, 1), (MICRO, 1000))}


def read_frames(path: Path) -> list[tuple[int, bytes]]:
    """Return the frames in a pcap file, with their times in nanoseconds after the first one's.

    :raises KinstError: if the file is not a pcap file with whole Ethernet frames in ascending
        order, or too large.
    """
    content = taken(path, MAX_FILE).content
    magic = bytes(content[:4])
    if magic == struct.pack("<I", PCAPNG):
        raise KinstError(f"{path}: is a pcapng file; convert it with editcap -F pcap")
    if magic not in SHAPES or len(content) < struct.calcsize("<" + HEAD):
        raise KinstError(f"{path}: is not a pcap file")
    order, unit = SHAPES[magic]
    link = struct.unpack_from(order + HEAD, content)[-1] & 0xFFFF
    if link != ETHERNET:
        raise KinstError(f"{path}: has frames of link type {link}; only Ethernet (1) is supported")
    row = struct.Struct(order + ROW)
    frames: list[tuple[int, bytes]] = []
    at, begin, last = struct.calcsize(order + HEAD), 0, 0
    while at < len(content):
        if len(frames) == MAX_FRAMES:
            raise KinstError(f"{path}: has more than {MAX_FRAMES} frames")
        number = len(frames) + 1
        if at + row.size > len(content):
            raise KinstError(f"{path}: is truncated in frame {number}")
        seconds, part, size, whole = row.unpack_from(content, at)
        frame = bytes(content[at + row.size : at + row.size + size])
        if len(frame) < size or size != whole or not MIN_FRAME <= size <= MAX_FRAME:
            raise KinstError(f"{path}: frame {number} has {len(frame)} of {whole} bytes; a frame "
                             f"must be complete and have {MIN_FRAME} to {MAX_FRAME} bytes")
        when = seconds * SECOND + part * unit
        if not frames:
            begin = when
        elif when < last:
            raise KinstError(f"{path}: frame {number} is older than the frame before it")
        frames.append((when - begin, frame))
        at, last = at + row.size + size, when
    return frames


def write_frames(path: Path, frames: Iterable[tuple[int, bytes]]) -> None:
    """Write frames to a pcap file.

    :param frames: (time in nanoseconds, frame).
    :raises OSError: if the file cannot be written.
    """
    with replacing(path) as file:
        file.write(struct.pack("<" + HEAD, NANO, 2, 4, 0, 0, MAX_FRAME, ETHERNET))
        for when, frame in frames:
            file.write(struct.pack("<" + ROW, when // SECOND, when % SECOND, len(frame),
                                   len(frame)))
            file.write(frame)
