"""Tests that source lines are found in the given source trees, and that no other files are read."""

import pytest

from dtrace.debug.source_text import MAX_FILE, WIDTH, SourceText
from emu.host.errors import KinstError


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree" / "sys" / "kern").mkdir(parents=True)
    content = b"first\n\t second  \n\xff" + b"x" * 200
    (tmp_path / "tree" / "sys" / "kern" / "a.c").write_bytes(content)
    (tmp_path / "outside.c").write_text("secret\n")
    (tmp_path / "tree" / "link.c").symlink_to(tmp_path / "outside.c")
    return tmp_path / "tree"


@pytest.mark.parametrize(("location", "text"), [
    ("/usr/src/sys/kern/a.c:1", "first"), ("kern/a.c:2", ""), ("sys/kern/a.c:2", "second"),
    ("./sys/kern/a.c:1", "first"), ("/usr/src/sys/kern/a.c:4", ""),
    ("/usr/src/sys/kern/a.c:0", ""),
    ("/usr/src/sys/kern/b.c:1", ""), ("sys/kern/a.c", ""), ("?", ""), ("", ""), (":", ""),
    ("../outside.c:1", ""), ("sys/../../outside.c:1", ""), ("/link.c:1", ""),
    ("sys/kern:1", ""), ("sys/kern/a.c:99999999999999999999", ""), ("sys/kern/a.c:\u0661", "")])
def test_source_lines_are_found_by_the_end_of_their_path(tree, location, text):
    assert SourceText([tree]).line(location) == text


def test_long_lines_are_truncated_and_invalid_utf_8_is_replaced(tree):
    line = SourceText([tree]).line("sys/kern/a.c:3")
    assert len(line) == WIDTH and line.startswith("\ufffdx")


def test_large_files_are_not_read(tree):
    (tree / "large.c").write_bytes(b"a\n" * (MAX_FILE // 2 + 1))
    assert SourceText([tree]).line("large.c:1") == ""


def test_the_first_tree_with_the_file_wins_and_a_missing_tree_is_refused(tree, tmp_path):
    other = tmp_path / "other"
    (other / "kern").mkdir(parents=True)
    (other / "kern" / "a.c").write_text("other\n")
    assert SourceText([other, tree]).line("/usr/src/sys/kern/a.c:1") == "other"
    assert SourceText([tree, other]).line("/usr/src/sys/kern/a.c:1") == "first"
    with pytest.raises(KinstError, match="no such directory"):
        SourceText([tmp_path / "none"])
