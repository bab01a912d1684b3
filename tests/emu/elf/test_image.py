import hashlib
import struct
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emu.arch.architectures import arch_of
from emu.elf.boot_options import BootOptions
from emu.elf.image import load_image
from emu.elf.symbols import FEW_QUESTIONS, SYMBOL, SymbolTable
from emu.host.errors import ImageError, MemoryAccessError
from images import catalog
from images.boots import unbooted
from tests.elfwriter import Elf

QUIET = settings(max_examples=300, deadline=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(tmp_path, data, name="kernel"):
    path = tmp_path / name
    path.write_bytes(data)
    return load_image(path)


def test_segments_symbols_and_the_build_id_are_read(tmp_path):
    image = load(tmp_path, Elf(segments=[(0x1000, b"abc", 16), (0x3000, b"xy", 2)],
                               build_id=b"\x12\x34").build())
    assert [(s.virtual, bytes(s.data), s.memory_size) for s in image.segments] == [
        (0x1000, b"abc", 16), (0x3000, b"xy", 2)]
    assert image.build_id == "1234" and image.identity.startswith("1234-")
    assert image.symbols.find("start").address == 0x1000
    assert image.virtual_to_file(0x1001, 4) == b"bc\0\0"


def test_all_functions_that_share_a_name_are_found(tmp_path):
    image = load(tmp_path, Elf(segments=[(0x1000, bytes(8), 8)], symbols=[
        ("f", 0x1000, 1, 2), ("g", 0x1001, 1, 2), ("f", 0x1002, 4, 2)]).build())
    assert [s.address for s in image.symbols.named("f")] == [0x1000, 0x1002]
    assert image.symbols.function_at(0x1004).name == "f"
    assert image.symbols.function_at(0x1006) is None


def test_a_name_that_is_the_suffix_of_another_is_found(tmp_path):
    image = load(tmp_path, Elf(symbols=[("xstrlen", 0x1000, 1, 2), ("strlen", 0x1001, 1, 2)])
                 .build())
    assert image.symbols.find("strlen").address == 0x1001
    assert image.symbols.find("len") is None


def test_the_identity_changes_with_the_content(tmp_path):
    one = load(tmp_path, Elf(build_id=b"id").build(), "one")
    two = load(tmp_path, Elf(build_id=b"id", segments=[(0x1000, b"\x91", 1)]).build(), "two")
    assert one.build_id == two.build_id and one.identity != two.identity


def test_an_image_accepts_the_identity_stored_in_older_recordings(tmp_path):
    """The old identity covers the build ID, entry point, segments and boot options."""
    image = load(tmp_path, Elf(build_id=b"id", segments=[(0x1000, b"abc", 16)]).build())
    content = hashlib.sha256(b"6964" + image.entry.to_bytes(8, "little"))
    for segment in image.segments:
        content.update(segment.virtual.to_bytes(8, "little")
                       + segment.physical.to_bytes(8, "little") + bytes(segment.data))
    older = f"6964-{content.hexdigest()[:32]}"
    assert image.identity != older and image.is_known_as(older)
    assert image.is_known_as(image.identity) and not image.is_known_as(f"6964-{'0' * 32}")
    options = BootOptions(flags="s")
    with_options = hashlib.sha256(older.encode() + options.digest.encode()).hexdigest()[:32]
    started = replace(image, options=options)
    assert started.is_known_as(f"6964-{with_options}") and not started.is_known_as(older)


def test_an_image_without_a_build_id_is_identified_by_its_content(tmp_path):
    one = load(tmp_path, Elf().build(), "one")
    copy = load(tmp_path, Elf().build(), "copy")
    two = load(tmp_path, Elf(segments=[(0x1000, b"\x91", 1)]).build(), "two")
    assert not one.build_id and one.identity == copy.identity != two.identity


@pytest.mark.parametrize("data, says", [
    (b"", "empty"),
    (b"#!/bin/sh\n", "not an ELF file"),
    (Elf(elf_class=1).build(), "ELF"),
    (Elf(kind=1).build(), "not an executable kernel"),
    (Elf(symbols=[]).build(), "no symbols"),
    (Elf(segments=[]).build(), "nothing to load"),
    (Elf(segments=[(0x1000, b"a" * 32, 32), (0x1010, b"b", 1)]).build(), "overlap"),
    (Elf(segments=[(0x1000, b"a" * 32, 16)]).build(), "damaged"),
    (Elf(segments=[((1 << 64) - 8, b"a", 64)]).build(), "wraps"),
    (Elf(segments=[(0x1000, b"a", 1 << 50)]).build(), "damaged"),
    (Elf().build()[:100], ""),
    (Elf().build()[:-10], ""),
])
def test_an_unusable_image_is_refused_with_one_line(tmp_path, data, says):
    with pytest.raises(ImageError) as error:
        load(tmp_path, data)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_directory_and_a_missing_file_are_refused(tmp_path):
    for path, says in ((tmp_path, "is a directory"), (tmp_path / "nothing", "No such file")):
        with pytest.raises(ImageError, match=says):
            load_image(path)


def test_an_unsupported_architecture_is_refused(tmp_path):
    with pytest.raises(ImageError, match="architectures: amd64, arm64, riscv64"):
        arch_of(load(tmp_path, Elf(arch="mips").build()))


def test_symbols_come_from_a_debug_file_beside_the_image(tmp_path):
    (tmp_path / "kernel.debug").write_bytes(Elf(build_id=b"same").build())
    image = load(tmp_path, Elf(symbols=[], build_id=b"same").build())
    assert image.symbols.find("start") is not None


STRIPPED = Elf(symbols=[("start", 0x1000, 4, 2), ("end", 0x1008, 4, 2)], symbols_type=11,
               segments=[(0x1000, b"\x90" * 16, 16)])


def test_a_stripped_image_has_the_symbols_of_its_dynamic_symbol_table(tmp_path):
    symbols = load(tmp_path, STRIPPED.build()).symbols
    assert symbols.find("start").address == 0x1000 and symbols.find("end").address == 0x1008
    assert symbols.where(0x1003) == "start+0x3" and symbols.where(0x1005) == "0x1005"
    # The code at 0x1005 is that of a function without a name, not of the symbol below it.
    assert symbols.label_at(0x1005) is None and symbols.label_at(0x1008).name == "end"
    # So is the code of an exception vector, unless it is near the vector's symbol.
    assert symbols.entry_at(0x1009, {"end"}).name == "end"
    assert symbols.entry_at(0x1005, {"end"}) is None
    assert symbols.entry_at(0x1008 + 100, {"end"}) is None
    assert [symbols.gap_at(at) for at in (0x1004, 0x1006, 0x100D, 0xFFF)] == [
        0x1004, 0x1004, 0x100C, 0xFFF]
    assert "put the matching kernel.debug next to it" in symbols.advice("nonsense")
    assert symbols.advice("star").startswith("did you mean start? the kernel was stripped")
    (tmp_path / "kernel.debug").write_bytes(Elf(symbols=[("static", 0x1004, 4, 2)]).build())
    symbols = load(tmp_path, STRIPPED.build()).symbols
    assert symbols.find("static").address == 0x1004 and not symbols.advice("nonsense")


def test_a_program_with_shared_libraries_is_not_a_stripped_kernel(tmp_path):
    data = bytearray(STRIPPED.build())
    table = data.index(struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0x1000, 4))
    for entry in (0, 1):
        struct.pack_into("<H", data, table + 24 * entry + 6, 0)  # the symbol is undefined
    with pytest.raises(ImageError, match="has no symbols"):
        load(tmp_path, bytes(data))


def test_a_debug_file_of_another_build_is_refused(tmp_path):
    (tmp_path / "kernel.debug").write_bytes(Elf(build_id=b"othe").build())
    with pytest.raises(ImageError, match="comes from a different build"):
        load(tmp_path, Elf(symbols=[], build_id=b"same").build())


@QUIET
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=8),
       st.integers(0, 700))
def test_a_mutated_image_loads_or_is_refused_with_one_line(tmp_path, changes, length):
    data = bytearray(Elf(build_id=b"id", segments=[(0x1000, b"abc", 16)]).build())
    for at, value in changes:
        data[at % len(data)] = value
    if length < len(data):
        del data[length:]
    try:
        image = load(tmp_path, bytes(data))
        list(image.symbols.functions())
        image.symbols.find("start")
        arch_of(image)
    except ImageError as error:
        assert "\n" not in str(error)


@given(st.lists(st.tuples(st.sampled_from(["a", "ba", "aba", "c", "", "\u00e9", "x" * 40]),
                          st.integers(0, 3)), max_size=12),
       st.sampled_from(["a", "ba", "c", "", "z", "\u00e9", "x" * 40, "a\0b"]))
def test_the_name_index_and_the_linear_search_agree(symbols, name):
    table = [SYMBOL.pack(0, 0, 0, 0, 0, 0)]
    strings = b"\0"
    for text, kind in symbols:
        table.append(SYMBOL.pack(len(strings), kind, 0, 1, len(table), 1))
        strings += text.encode() + b"\0"
    for text in (strings, strings[:-1]):  # the last name may lack its terminator
        few, many = (SymbolTable(b"".join(table), text) for _ in range(2))
        for _ in range(FEW_QUESTIONS):
            many.named("z")
        assert few.named(name) == many.named(name)


def test_function_sizes_are_limited_to_the_segment_and_in_total(tmp_path):
    path = tmp_path / "kernel"
    code = b"\x90" * 64
    symbols = [("start", 0x1000, 16, 2), ("long", 0x1010, (1 << 63) - 1, 2)]
    path.write_bytes(Elf(segments=[(0x1000, code, 64)], symbols=symbols).build())
    found = load_image(path).symbols
    assert found.find("long").size == found.named("long")[0].size == 48
    assert found.function_at(0x1020).size == 48 and found.function_at(0x1040) is None
    assert [f.size for f in found.functions()] == [16, 48] and found.where(0x1100) == "0x1100"
    symbols = [(f"f{n}", 0x1000, 64, 2) for n in range(17)]
    path.write_bytes(Elf(segments=[(0x1000, code, 64)], symbols=symbols).build())
    with pytest.raises(ImageError, match=f"{path}: damaged symbols: the sizes of the functions"):
        load_image(path).symbols.function_at(0x1000)


@pytest.mark.parametrize("size", [-1, 1 << 62, (1 << 64) - 1])
def test_a_read_of_an_impossible_size_is_refused(size):
    machine = unbooted(catalog.find("teaching/amd64"), 64 << 20)
    with pytest.raises(MemoryAccessError, match=f"^cannot access {size} bytes at guest address 0x"):
        machine.read(machine.pc, size)
