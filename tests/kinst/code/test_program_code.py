"""Tests of the division of a program's code into functions and pieces."""

from pathlib import Path

import pytest

from emu.elf.program import ProgramFile
from emu.elf.reader import HEADER, SECTION
from emu.host.errors import ImageError
from emu.host.input_file import InputFile
from kinst.code.listing import MAX_FUNCTION
from kinst.code.program_code import program_code
from tests.dwarf import test_eh_frames
from tests.elfwriter import Elf

TEXT = 0x1078


def program(size, symbols, described, damage=b"", claims=0):
    """Return a shared object with a section .text of a given size.

    :param described: (first address, size) of the functions in .eh_frame.
    :param damage: bytes after the entries of .eh_frame.
    :param claims: size of .text in its header; 0: the right one.
    """
    frames = test_eh_frames.cie(b"zR", bytes((0,)))
    for low, length in described:
        frames += test_eh_frames.fde(len(frames), 0, low=low, size=length,
                                     encoding=test_eh_frames.ABSOLUTE)
    content = bytearray(Elf(kind=3, symbols_type=11, symbols=symbols,
                            segments=[(TEXT, bytes(size), size)],
                            others={".eh_frame": frames + damage, ".text": b""}).build())
    header = HEADER.unpack_from(content)
    at, count, names = header[6], header[12], header[13]
    strings = SECTION.unpack_from(content, at + names * SECTION.size)[4]
    for n in range(count):
        row = list(SECTION.unpack_from(content, at + n * SECTION.size))
        if content[strings + row[0] :].startswith(b".text\0"):
            # SHF_ALLOC | SHF_EXECINSTR, and the bytes of the segment
            row[2:6] = 6, TEXT, 120, claims or size
            SECTION.pack_into(content, at + n * SECTION.size, *row)
    path = Path("x.so")
    return ProgramFile(path, InputFile(path, memoryview(bytes(content)), (0, 0, 0, 0, 0)), True)


def pieces(file):
    return sorted((one.address - TEXT, one.address + one.size - TEXT, one.name)
                  for one in program_code(file))


def test_the_code_between_functions_is_divided_where_functions_begin():
    file = program(0x100, [("f", TEXT + 0x20, 0x20, 2), ("g", TEXT + 0x80, 0x10, 2)],
                   [(TEXT + 0x10, 0x30), (TEXT + 0x24, 4), (TEXT + 0x50, 0x10),
                    (TEXT + 0x60, 0x40), (TEXT + 0x1000, 0x10)])
    assert pieces(file) == [
        (0, 0x10, ".text+0x0"), (0x10, 0x20, ".text+0x10"), (0x20, 0x40, "f"),
        (0x40, 0x50, ".text+0x40"), (0x50, 0x60, ".text+0x50"), (0x60, 0x80, ".text+0x60"),
        (0x80, 0x90, "g"), (0x90, 0x100, ".text+0x90")]


def test_overlapping_descriptions_cost_no_more_than_the_code():
    file = program(0x1000, [("f", TEXT, 0x10, 2)],
                   [(TEXT + 0x10 + n, 0xF00) for n in range(0x80)])
    assert sum(high - low for low, high, _name in pieces(file)) == 0x1000


def test_large_pieces_are_divided():
    size = MAX_FUNCTION + 0x10
    file = program(size, [("f", TEXT, 0x10, 2)], [])
    assert pieces(file) == [(0, 0x10, "f"), (0x10, size, ".text+0x10")]
    file = program(2 * size, [("f", TEXT, 0x10, 2)], [])
    assert [one[:2] for one in pieces(file)] == [
        (0, 0x10), (0x10, 0x10 + MAX_FUNCTION), (0x10 + MAX_FUNCTION, 0x10 + 2 * MAX_FUNCTION),
        (0x10 + 2 * MAX_FUNCTION, 2 * size)]


def test_a_section_larger_than_the_file_is_refused():
    file = program(0x40, [("f", TEXT, 0x10, 2)], [], claims=1 << 60)
    with pytest.raises(ImageError, match="its sections with code are larger than the file"):
        program_code(file)


def test_without_call_frame_information_the_symbols_divide_the_code():
    file = program(0x40, [("f", TEXT + 0x20, 0x10, 2)], [])
    assert [one[:2] for one in pieces(file)] == [(0, 0x20), (0x20, 0x30), (0x30, 0x40)]


def test_a_damaged_description_is_ignored():
    file = program(0x40, [("f", TEXT, 0x20, 2)], [(TEXT + 0x20, 8)], damage=b"\xff" * 8)
    assert pieces(file) == [(0, 0x20, "f"), (0x20, 0x40, ".text+0x20")]
