"""The house's own rules: which room may use which, and where an architecture's name may stand."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("emu", "kinst", "dwarf", "images", "dtrace", "kinst_emu")
MAY_USE = {
    "emu": {"emu"},
    "dwarf": {"dwarf", "emu"},
    "images": {"images", "emu"},
    "kinst": {"kinst", "emu", "dwarf"},
    "dtrace": {"dtrace", "kinst", "dwarf", "emu", "images"},
    "kinst_emu": set(ROOMS),
}
FILES = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_uses_only_the_rooms_below_it(path):
    room = path.relative_to(ROOT).parts[0]
    used = {name.split(".")[0] for name in imports(path)} & set(ROOMS)
    assert used <= MAY_USE[room]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_outside_an_architecture_folder_compares_architecture_names(path):
    if path.parent.name in ("amd64", "arm64", "riscv64"):
        return
    found = re.findall(r"""arch(?:\.name)?\s*[!=]=\s*["'](?:amd64|arm64|riscv64)""",
                       path.read_text())
    assert not found


def test_the_machine_never_reads_the_clock_of_the_host():
    """The machine on QEMU does: it waits for another process."""
    for path in (ROOT / "emu").rglob("*.py"):
        if path == ROOT / "emu" / "qemu" / "machine.py":
            continue
        assert "time" not in set(imports(path)), path
        assert "datetime.now" not in path.read_text() and "utcnow" not in path.read_text()


def test_nothing_unpickles_or_evaluates():
    for path in FILES:
        assert "pickle" not in set(imports(path)), path
        calls = {n.func.id for n in ast.walk(ast.parse(path.read_text()))
                 if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not calls & {"eval", "exec"}, path
