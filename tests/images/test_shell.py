"""Tests of running commands in a guest's shell and finding the output on the console.

Programs are run in tests/real/test_user_space.py.
"""

import re
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.unicorn.machine import UnicornMachine
from images import build_userland, catalog
from images.shell import (
    CommandError,
    run_command,
    shown_output,
    with_files,
    with_userland,
    without_marks,
)
from images.ufs import File, FileSystemError, Folder, read_folder
from tests.conftest import ARCHES, MEMORY
from tests.images.test_ufs import Reader
from tests.kinst_emu.commands.test_commands import refused, run

PROMPT = b"\033]133;A\007# \033]133;B\007"


def shown(console):
    found = bytearray()
    heard = shown_output(found.append)
    for byte in console:
        heard(byte)
    return bytes(found)


@given(st.binary(max_size=200).filter(lambda text: b"\033]133" not in text), st.integers(0, 255))
def test_a_command_s_output_is_shown_without_its_marks(output, status):
    text = output.rstrip(b"\033")  # trailing escapes are held back, since they may start a mark
    console = (PROMPT + b"ls\r\n\033]133;C\007" + text + b"\n"
               + f"\033]133;D;{status}\007".encode() + PROMPT)
    assert shown(console) == text + b"\n"


@given(st.lists(st.one_of(
    st.sampled_from([b"\033]133;A\007", b"\033]133;D;0\007", b"\033]133;B\007"]),
    st.binary(max_size=20).filter(lambda text: b"\033" not in text))))
def test_a_console_is_shown_without_the_marks_of_the_shell(pieces):
    found = bytearray()
    heard = without_marks(found.append)
    for byte in b"".join(pieces):
        heard(byte)
    assert found == b"".join(piece for piece in pieces if not piece.startswith(b"\033"))


def test_other_escape_sequences_are_shown():
    assert shown(b"\033]133;C\007a\033[1mbold\033]0;title of a window\007\n") == (
        b"a\033[1mbold\033]0;title of a window\007\n")


@pytest.mark.parametrize("arch", ARCHES)
def test_the_teaching_kernel_cannot_run_programs(arch):
    with pytest.raises(CommandError, match="cannot run programs"):
        with_userland(catalog.find(f"teaching/{arch}"))
    refused(run("kinst", "run", "-k", f"teaching/{arch}", "--", "ls"), "cannot run programs")


@pytest.fixture(scope="module")
def machine():
    return UnicornMachine(catalog.find("teaching/amd64"), MEMORY)


@pytest.mark.parametrize("command", ["", "  ", "a\rb", "x" * 1001])
def test_an_invalid_command_line_is_not_typed(machine, command):
    with pytest.raises(CommandError, match="printable"):
        run_command(machine, command, 1)


def test_a_machine_that_is_not_at_the_shell_prompt_is_refused(machine):
    with pytest.raises(CommandError, match="prompt"):
        run_command(machine, "ls", 1)


def test_an_unknown_option_of_run_is_refused():
    refused(run("kinst", "run", "-k", "teaching/amd64", "--limit", "x", "--", "ls"), "--limit")


@pytest.mark.parametrize("arch", ARCHES)
def test_the_userland_matches_a_build_from_source(tmp_path, arch):
    packed = build_userland.build(arch, tmp_path)
    assert packed.read_bytes() == catalog.userland(arch).read_bytes()
    root = Reader(packed.read_bytes()).tree()
    shell = root.entries["sbin"].entries["init"]
    assert shell.content[:4] == b"\x7fELF" and shell.mode == stat.S_IFREG | 0o755
    assert set(root.entries["bin"].entries) == {*build_userland.TOOLS, "check", "work"}


def test_the_list_of_tools_matches_the_shell():
    source = (build_userland.SOURCE / "shell.c").read_text()
    table = source.partition("tools[] = {\n")[2].partition("};")[0]
    assert {*re.findall(r'\{ "(\w+)", ', table), "sh"} == set(build_userland.TOOLS)


def test_a_host_directory_is_packed_with_its_permissions(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "prog").write_bytes(b"x" * 9000)
    (tmp_path / "sub" / "prog").chmod(0o751)
    (tmp_path / "link").symlink_to("sub/prog")
    found = read_folder(tmp_path)
    assert found.entries["link"] == File(b"sub/prog", stat.S_IFLNK | 0o777)
    assert found.entries["sub"].entries["prog"] == File(b"x" * 9000, stat.S_IFREG | 0o751)
    root = Reader(with_files(tmp_path, "arm64").content.tobytes()).tree()
    assert isinstance(root.entries["files"], Folder)
    assert root.entries["files"].entries["sub"].entries["prog"].content == b"x" * 9000


def test_a_missing_host_directory_is_reported(tmp_path):
    with pytest.raises(FileSystemError, match="No such file"):
        read_folder(tmp_path / "none")
