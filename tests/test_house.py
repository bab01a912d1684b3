"""The house's own rules: which room may use which, and where an architecture's name may stand."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

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


def modules():
    """Dotted names of all files."""
    found = {}
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def uses(path, known):
    """The modules that a file imports anywhere: in functions, and for type checkers alone, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from (name for name in (inner, node.module) if name in known)


def test_no_files_import_each_other_in_a_circle():
    known = modules()
    left = {name: set(uses(path, known)) - {name} for name, path in known.items()}
    # A package's own file may name what is in it, for who imports the package.
    for name, used in left.items():
        left[name] = {other for other in used
                      if not (known[other].name == "__init__.py" and name.startswith(other + "."))}
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"among these there is a circle: {', '.join(sorted(left))}"


# Who may know one guest: the list of guests, the emulator's way to boot it, and the trials of its
# own modules.
KNOW_FREEBSD = {"emu/guests.py", "emu/amd64/qemu.py", "emu/arm64/qemu.py", "emu/riscv64/qemu.py",
                "kinst/trial/bed.py", "kinst/trial/module.py"}


def test_what_is_freebsds_is_known_in_its_folder():
    for path in FILES:
        name = str(path.relative_to(ROOT))
        if name.startswith("emu/freebsd/") or name in KNOW_FREEBSD:
            continue
        assert not any(used.startswith("emu.freebsd") for used in imports(path)), name


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_outside_an_architecture_folder_compares_architecture_names(path):
    if path.parent.name in ("amd64", "arm64", "riscv64"):
        return
    found = re.findall(r"""arch(?:\.name)?\s*[!=]=\s*["'](?:amd64|arm64|riscv64)""",
                       path.read_text())
    assert not found


def test_the_machine_never_reads_the_clock_of_the_host():
    """The machine on QEMU does, and the client of its stub: they wait for another process.  So does
    what a debugger drives: it looks at the debugger several times a second, between runs that may
    be cut anywhere."""
    waits = [ROOT / "emu" / "qemu" / "machine.py", ROOT / "emu" / "qemu" / "gdb_remote.py",
             ROOT / "emu" / "gdb" / "target.py"]
    for path in (ROOT / "emu").rglob("*.py"):
        if path in waits:
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
    native = {name: path for path in (ROOT / "emu" / "unicorn").glob("_*.p[yx][xdi]")
              for name in NUMBER.findall(path.read_text())}
    native |= {name: path for path in (ROOT / "kinst").glob("**/_*.p[yx][xdi]")
               for name in NUMBER.findall(path.read_text())}
    assert {"SLOT", "MAX_STOPS", "STOP_ADDRESS"} <= native.keys()
    for path in FILES:
        if path.relative_to(ROOT).parts[0] not in ("emu", "kinst"):
            continue
        again = {n for n in NUMBER.findall(path.read_text())
                 if n in native} - {"MAX_REGISTERS"}  # of gdb's protocol: another thing
        assert not again, f"{path}: {again}"


def test_every_package_is_in_what_is_installed():
    """They are found by pattern; each folder with Python in it is one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = find_packages(str(ROOT), **project["tool"]["setuptools"]["packages"]["find"])
    assert sorted(found) == sorted({
        ".".join(path.parent.relative_to(ROOT).parts) for path in FILES})


def test_an_architecture_is_as_many_files_as_the_documentation_says():
    """Those that every architecture has; ``docs/house.md`` names each."""
    needed = []
    for room in ("emu", "emu/freebsd", "kinst"):
        names = [{path.name for path in (ROOT / room / arch).iterdir()
                  if path.suffix in (".py", ".pyx") and path.name != "__init__.py"}
                 for arch in ("amd64", "arm64", "riscv64")]
        needed += sorted(set.intersection(*names))
    said = (ROOT / "docs" / "house.md").read_text()
    table = said[said.index("**An architecture.** Seventeen files"):said.index("## Twins")]
    assert len(needed) == 17
    assert [name for name in needed if f"`{name}`" not in table] == []


def test_a_class_has_a_name_of_its_own():
    defined = {}
    for path in sorted(ROOT.rglob("*.py*")):
        room = path.relative_to(ROOT).parts[0]
        if room not in ROOMS or path.suffix not in (".py", ".pyx"):
            continue
        for name in re.findall(r"^(?:cdef )?class ([A-Za-z]\w*)", path.read_text(), re.M):
            defined.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert len(defined) > 300
    assert {name: sorted(files) for name, files in defined.items() if len(files) > 1} == {}
