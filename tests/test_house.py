"""The house's own rules: which room may use which, and where an architecture's name may stand."""

import ast
import re
import tomllib
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


def test_only_the_front_door_imports_a_command():
    allowed = {ROOT / "kinst_emu" / "entry.py", ROOT / "kinst_emu" / "commands" / "kinst.py"}
    for path in FILES:
        if path not in allowed:
            assert not [n for n in imports(path) if n.startswith("kinst_emu.commands")], path


NUMBER = re.compile(r"^\s*(?:cdef (?:enum )?\w+ )?([A-Z][A-Z0-9_]{3,}) *= *(?:0x[0-9a-fA-F]+|\d+)",
                    re.M)


def test_a_number_that_native_code_knows_is_not_defined_again():
    """Between a native file and any other of the same room and the rooms above it; bounds that each
    reader of untrusted data has for itself are not shared."""
    native = {name: path for path in (ROOT / "emu" / "unicorn").glob("_*.p[yx]*")
              for name in NUMBER.findall(path.read_text())}
    native |= {name: path for path in (ROOT / "kinst").glob("_*.pyx")
               for name in NUMBER.findall(path.read_text())}
    assert {"SLOT", "MAX_STOPS", "STOP_ADDRESS"} <= native.keys()
    for path in FILES:
        if path.relative_to(ROOT).parts[0] not in ("emu", "kinst"):
            continue
        again = {n for n in NUMBER.findall(path.read_text())
                 if n in native} - {"MAX_REGISTERS"}  # of gdb's protocol: another thing
        assert not again, f"{path}: {again}"


def test_every_package_is_in_what_is_installed():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())
                 ["tool"]["setuptools"]["packages"])
    there = {".".join(path.parent.relative_to(ROOT).parts)
             for top in {name.partition(".")[0] for name in listed}
             for path in (ROOT / top).rglob("__init__.py")}
    assert there == listed
