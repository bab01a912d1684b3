"""Compact form of a path for a page: streams of numbers, compressed and in base64.

A stream is a sequence of variable-length numbers (LEB128: seven bits per byte, the lowest first).
``z`` numbers are signed: 2n for n >= 0, -2n - 1 for n < 0.

- ``pcs``: z, difference of each instruction's index in the code table to the one before it
- ``runs``: for each run: moment, position, time; differences to the run before it
- ``changes``: for each register: number of its changes, then z differences of the moments
- ``values``: for the same changes: eight bytes each, all first bytes before all second bytes
- ``loads``, ``stores``: z difference of the moment, index of the page, offset in it, size
- ``stored``: the bytes of the stores; ``storers``: a byte for what made each store
- ``pages``: the contents of the pages
"""

from collections.abc import Iterable

from dtrace.flow.thread_path import PAGE, ThreadPath
from kinst_emu.report.page_file import packed


def numbers(values: Iterable[int]) -> bytes:
    """Return non-negative numbers as a stream."""
    out = bytearray()
    for value in values:
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def zigzag(value: int) -> int:
    """Return the number that stands for a signed one."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def differences(values: Iterable[int]) -> list[int]:
    """Return the differences of numbers to the number before them, as ``z`` numbers."""
    found, before = [], 0
    for value in values:
        found.append(zigzag(value - before))
        before = value
    return found


def streams(path: ThreadPath, index: dict[int, int]) -> dict[str, str]:
    """Return the streams of a path, packed.

    :param index: index of each instruction in the code table, by address.
    """
    pages = {physical: number for number, physical in enumerate(path.pages)}
    by_register: list[list[tuple[int, int]]] = [[] for _ in path.registers]
    for moment, register, value in path.changes:
        by_register[register].append((moment, value))
    changes = [number for rows in by_register
               for number in (len(rows), *differences(moment for moment, _value in rows))]
    values = b"".join(value.to_bytes(8, "little")
                      for rows in by_register for _moment, value in rows)
    stores = [row for row in path.stores if row[2] and row[1] & -PAGE in pages]
    loads = [row for row in path.loads if row[1] & -PAGE in pages]
    return {
        "pcs": packed(numbers(differences(index[pc] for pc in path.pcs))),
        "runs": packed(numbers(number for at in range(3) for number in differences(
            run[at] for run in path.runs))),
        "changes": packed(numbers(changes)),
        "values": packed(b"".join(values[at::8] for at in range(8))),
        "loads": packed(_accesses(pages, loads)),
        "stores": packed(_accesses(pages, [(moment, address, len(content))
                                           for moment, address, content, _who in stores])),
        "stored": packed(b"".join(content for _moment, _address, content, _who in stores)),
        "storers": packed(bytes(who for _moment, _address, _content, who in stores)),
        "pages": packed(b"".join(path.pages.values())),
    }


def _accesses(pages: dict[int, int], rows: list[tuple[int, int, int]]) -> bytes:
    return numbers(number for (moment, address, size), step in zip(
        rows, differences(row[0] for row in rows), strict=True)
        for number in (step, pages[address & -PAGE], address % PAGE, size))
