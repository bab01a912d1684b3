import pytest

from dtrace.stacks.user_programs import UserPrograms, walk
from emu.elf.program import ProgramFile
from emu.elf.symbols import STT_FUNC
from emu.host.errors import ImageError
from images import catalog
from tests.conftest import ARCHES
from tests.elfwriter import Elf
from tests.kinst_emu.commands.test_commands import run

START = 0x7FFF_0000


def memory(*records):
    """Return a function that reads frame records (saved frame, return address) 32 bytes apart."""
    words = {}
    for n, (outer, back) in enumerate(records):
        words[START + 32 * n], words[START + 32 * n + 8] = outer, back
    return words.get


def test_a_user_stack_is_walked_to_the_program_start():
    read = memory((START + 32, 0x1010), (START + 64, 0x2020), (0, 7))
    assert walk(0x1000, START, (0, 8), read, 10) == [0x1000, 0x1010, 0x2020]
    assert walk(0x1000, START, (0, 8), read, 2) == [0x1000, 0x1010]


@pytest.mark.parametrize("records, found", [
    ([(START, 0x1010)], [1, 0x1010]),  # the record points to itself
    ([(START - 64, 0x1010)], [1, 0x1010]),  # the next record is at a lower address
    ([(START + 32, 1 << 63)], [1]),  # the return address is in the kernel
    ([(START + 33, 0x1010)], [1, 0x1010]),  # the next record is misaligned
    ([(START + 32, 0x1010)], [1, 0x1010]),  # the next record is unmapped
    ([], [1]),
])
def test_a_broken_chain_of_frames_ends_the_walk(records, found):
    assert walk(1, START, (0, 8), memory(*records), 100) == found
    assert walk(1, 1 << 63, (0, 8), memory(*records), 100) == [1]


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
