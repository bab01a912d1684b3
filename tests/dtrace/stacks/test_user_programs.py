import pytest

from dtrace.stacks.mapped_files import MappedFile
from dtrace.stacks.user_programs import UserPrograms, frame_word, moves
from emu.elf.program import ProgramFile
from emu.elf.symbols import STT_FUNC
from emu.host.errors import ImageError
from images import catalog
from tests.conftest import ARCHES
from tests.elfwriter import Elf
from tests.kinst_emu.commands.test_commands import run


def test_user_frames_are_named_by_process_name_and_function(arch):
    shell = catalog.userland(arch).with_name("shell.debug")
    symbols = ProgramFile(shell).symbols
    main = symbols.find("main")
    assert main is not None and main.kind == STT_FUNC
    programs = UserPrograms({"cat": shell, "gone": shell.with_name("no"), "x" * 30: shell})
    for name, said in (("cat", "cat`main+0x4"), ("x" * 19, f"{'x' * 19}`main+0x4"),
                       ("gone", f"gone`{main.address + 4:#x}"), ("", f"`{main.address + 4:#x}")):
        word = programs.frame(name, main.address + 4)
        assert word < 1 << 61
        if name:
            assert programs.is_frame(word) and programs.line(word) == said
        else:
            assert not programs.is_frame(word) and word == main.address + 4


def test_relocate_verifies_the_code_of_a_user_program(arch):
    program = catalog.userland(arch).with_name("work.debug")
    result = run("kinst", "relocate", "--program", str(program))
    assert result.returncode == 0, result.stdout
    assert " 0 mismatches, 0 unproven" in result.stdout
    for options, said in ((("-k", "teaching/amd64"), "leave out -k"),
                          (("--arch", next(a for a in ARCHES if a != arch)), f"is for {arch}"),
                          (("main",), "leave out -k")):
        refused = run("kinst", "relocate", "--program", str(program), *options)
        assert refused.returncode == 1 and said in refused.stderr


def test_relocate_verifies_the_code_of_a_stripped_shared_object(tmp_path, arch):
    call = {"amd64": "e800000000", "arm64": "00000094", "riscv64": "ef000000"}[arch]
    code = bytes.fromhex(call) * 8
    path = tmp_path / "libx.so"
    path.write_bytes(Elf(arch=arch, kind=3, symbols_type=11, symbols=[("f", 0x1078, len(code), 2)],
                         segments=[(0x1078, code, len(code))]).build())
    result = run("kinst", "relocate", "--program", str(path))
    assert result.returncode == 0, result.stderr
    assert "1 distinct encodings, 0 mismatches, 0 unproven" in result.stdout


def test_a_program_file_without_usable_symbols_is_refused(tmp_path, arch):
    path = tmp_path / "prog"
    for content, says in ((b"#!/bin/sh", "not an ELF file"), (b"", "is empty"),
                          (Elf(arch=arch).build()[:40], "truncated")):
        path.write_bytes(content)
        with pytest.raises(ImageError, match=says):
            ProgramFile(path)
    stripped = catalog.userland(arch).with_name("shell")
    with pytest.raises(ImageError, match="has no symbols"):
        ProgramFile(stripped)


def shared_object(arch, symbols, kind=11):
    """Return an object with two segments, which are in the first page of the file."""
    return Elf(arch=arch, kind=3, symbols_type=kind, symbols=symbols,
               segments=[(0x10B0, bytes(0x800), 0x800), (0x38B0, b"\x90" * 0x700, 0x700)]).build()


def test_frames_in_shared_objects_are_named_by_object_and_function(arch):
    library = shared_object(arch, [("early", 0x10b0, 16, 2), ("late", 0x3900, 0x40, 2)])
    files = {"/lib/libx.so.1": library, "/bad": b"no"}
    programs = UserPrograms({}, contents=lambda path: files[path] if path in files else fail(path))
    start = 0x8_0000_0000
    moved = start - 0x3000
    maps = [MappedFile(start - 0x2000, start - 0x1000, 0, "/lib/libx.so.1"),
            MappedFile(start, start + 0x1000, 0, "/lib/libx.so.1"),
            MappedFile(start + 0x10000, start + 0x11000, 0, "/bad"),
            MappedFile(start + 0x20000, start + 0x21000, 0, "/none")]
    number = programs.number("prog", 77, maps)
    for address, said in ((moved + 0x3900, "libx.so.1`late"),
                          (moved + 0x3904, "libx.so.1`late+0x4"),
                          (moved + 0x3940, f"libx.so.1`{moved + 0x3940:#x}"),
                          (start + 0x10004, f"bad`{start + 0x10004:#x}"),
                          (start + 0x20004, f"none`{start + 0x20004:#x}"),
                          (0x1234, "prog`0x1234")):
        word = frame_word(number, address)
        assert programs.is_frame(word) and programs.line(word) == said
        assert programs.line(word, offset=False) == said.partition("+")[0]
    assert programs.start(frame_word(number, moved + 0x3904)) == frame_word(number, moved + 0x3900)
    assert programs.module_start(frame_word(number, moved + 0x3904)) == (
        frame_word(number, start - 0x2000))
    assert programs.name(frame_word(number, 0x1234)) == "prog"


def test_a_file_is_moved_only_to_where_all_its_code_is_mapped(tmp_path, arch):
    def mapped(*starts):
        return [MappedFile(at, at + 0x1000, 0, "/x") for at in starts]

    path = tmp_path / "x"
    path.write_bytes(Elf(
        arch=arch, kind=3, symbols_type=11, symbols=[("f", 0x1160, 16, 2)],
        segments=[(at, bytes(64), 64) for at in (0x120, 0x1160, 0x21A0, 0x31E0)]).build())
    small = ProgramFile(path, movable=True)  # all its segments are in one page of the file
    assert small.first_pages == [(at, 0, True) for at in range(0, 0x4000, 0x1000)]
    low, high = 0x8000_0000, 0x9000_0000
    pages = range(0, 0x4000, 0x1000)
    whole = mapped(*(low + at for at in pages))
    assert moves(small, whole) == [low]
    # the loader has mapped the first page before; the file was loaded again, elsewhere and nearby
    again = [*mapped(0x7000_0000), *whole, *mapped(*(high + at for at in pages)),
             *mapped(*(high + 0x5000 + at for at in pages))]
    assert moves(small, again) == [low, high, high + 0x5000]
    assert moves(small, whole[:1]) == [low]  # nothing else is known yet
    assert moves(small, []) == []


def fail(path):
    raise ImageError(f"{path}: does not exist")


def test_processes_with_one_name_have_their_own_maps_and_old_words_keep_their_names(arch):
    old = shared_object(arch, [("old", 0x10B0, 64, 2)])
    new = shared_object(arch, [("new", 0x10B0, 64, 2)])
    programs = UserPrograms({}, contents={"/o": old, "/n": new}.__getitem__)
    at = 0x4000_0000
    one = programs.number("sh", 1, [MappedFile(at, at + 4096, 0, "/o")])
    other = programs.number("sh", 2, [MappedFile(at, at + 4096, 0, "/n")])
    assert one != other and programs.number("sh", 1, [MappedFile(1, 2, 0, "/x")]) == one
    inside = at + 0xB0
    assert programs.line(frame_word(one, inside)) == "o`old"
    assert programs.line(frame_word(other, inside)) == "n`new"
    # The same process maps another file there, and then the first one again.
    later = programs.number("sh", 1, [MappedFile(at, at + 4096, 0, "/n")])
    again = programs.number("sh", 1, [MappedFile(at, at + 4096, 0, "/o")])
    assert len({one, other, later, again}) == 4
    assert [programs.line(frame_word(number, inside)) for number in (one, later, again)] == [
        "o`old", "n`new", "o`old"]
    assert programs.number("sh") not in (one, other, later, again)


def test_hostile_files_have_no_names_and_cost_little(arch):
    below = Elf(arch=arch, kind=3, segments=[(0x900B0, bytes(64), 64)],
                symbols=[("fn", 0x1000, 0xA0000, 2)]).build()
    many = Elf(arch=arch, kind=3, segments=[(0x1000 * n, b"", 0) for n in range(1, 3000)],
               symbols=[("f", 0x1000, 64, 2)]).build()
    programs = UserPrograms({}, contents={"/below": below, "/many": many}.__getitem__)
    number = programs.number("p", 1, [MappedFile(0x40000, 0x41000, 0, "/below"),
                                      MappedFile(0x50000, 0x51000, 0, "/many")])
    word = frame_word(number, 0x400C0)
    assert programs.start(word) == word  # the function would begin at a negative address
    assert programs.line(frame_word(number, 0x50010)) == "many`0x50010"
    with pytest.raises(ImageError, match="has more than 64 segments"):
        programs.mapped_file("/many")
    with pytest.raises(ImageError, match="cannot be read here"):
        programs.mapped_file("many")


def test_a_debug_file_of_the_guest_provides_the_symbols(arch):
    stripped, full = (shared_object(arch, [(name, 0x1000, 64, 2)], kind)
                      for name, kind in (("exported", 11), ("static_one", 2)))
    files = {"/lib/a.so": stripped, "/debug/lib/a.so.debug": full}

    def read(path):
        return files[path] if path in files else fail(path)

    for debug_file, name in (("", "exported"), ("/debug{}.debug", "static_one"),
                             ("/other{}", "exported")):
        programs = UserPrograms({}, contents=read, debug_file=debug_file)
        found = programs.mapped_file("/lib/a.so").symbols.function_at(0x1000)
        assert found is not None and found.name == name


def test_a_stripped_or_movable_file_is_refused_where_its_place_must_be_known(tmp_path, arch):
    path = tmp_path / "lib.so"
    path.write_bytes(shared_object(arch, [("f", 0x1000, 64, 2)], 2))
    with pytest.raises(ImageError, match="is position-independent"):
        ProgramFile(path)
    assert ProgramFile(path, movable=True).moves(0x7000, 1 << 40) == []
