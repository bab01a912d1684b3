"""Tests of rules about the source code that import-linter cannot check.

They concern native files, sizes of files and classes, and names of architectures.
"""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("emu", "kinst", "dwarf", "images", "dtrace", "kinst_emu")
FILES = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
NATIVE = [path for room in ROOMS for path in (ROOT / room).rglob("*.p[yx][xdi]")
          if path.suffix != ".py"]
MAX_LINES, MAX_METHODS, MAX_FIELDS = 800, 25, 20
REASON = "Large because "  # begins the explanation in the docstring of a large class
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def floors():
    """Return the packages that import-linter's contracts forbid each package to import."""
    above = {}
    for contract in PROJECT["tool"]["importlinter"]["contracts"]:
        if contract["type"] != "layers":
            continue
        for container in contract.get("containers", [""]):
            floor = [[f"{container}.{name.strip()}".lstrip(".") for name in layer.split("|")]
                     for layer in contract["layers"]]
            for number, names in enumerate(floor):
                others = {other for layer in floor[: number + 1] for other in layer}
                for name in names:
                    above[name] = others - {name}
    return above


def within(module, package):
    return module == package or module.startswith(package + ".")


def test_native_files_and_stubs_keep_the_import_contracts():
    """import-linter does not read Cython files and stubs, so the test checks their imports."""
    above, looked = floors(), 0
    for path in NATIVE:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for used in re.findall(r"^\s*(?:from|cimport|import) ([\w.]+)", path.read_text(), re.M):
            if used.split(".")[0] not in ROOMS:
                continue
            looked += 1
            for package, others in above.items():
                if within(name, package):
                    assert not [other for other in others if within(used, other)], (name, used)
    assert looked > 40


def test_no_file_is_longer_than_800_lines():
    assert [path for path in (*FILES, *NATIVE)
            if len(path.read_text().splitlines()) > MAX_LINES] == []


def size_of(node):
    """Return (number of public methods, number of fields) of a class.

    Fields are those declared in the class and those assigned in its methods.
    """
    methods = {item for item in node.body if isinstance(item, ast.FunctionDef)}
    fields = {item.target.id for item in node.body
              if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)}
    for method in methods:
        for item in ast.walk(method):
            if (isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store)
                    and isinstance(item.value, ast.Name) and item.value.id == "self"):
                fields.add(item.attr)
    public = {item.name for item in methods if not item.name.startswith("_")}
    return len(public), len(fields - {item.name for item in methods})


def test_a_large_class_says_why_it_is_large():
    """A class with more than 25 public methods or 20 fields counts as large."""
    large = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods, fields = size_of(node)
                docstring = " ".join((ast.get_docstring(node) or "").split())
                if REASON not in docstring and (methods > MAX_METHODS or fields > MAX_FIELDS):
                    large.add(node.name)
    assert large == set()


def test_no_file_outside_an_architecture_folder_compares_architecture_names():
    for path in FILES:
        if path.parent.name not in ("amd64", "arm64", "riscv64"):
            assert not re.search(r"""arch(?:\.name)?\s*[!=]=\s*["'](?:amd64|arm64|riscv64)""",
                                 path.read_text()), path


def test_the_machine_never_reads_the_clock_of_the_host():
    """The machine does not import the time module.

    The machine on QEMU and the client of its stub may, since they wait for another process, and so
    may the thread that watches the parent process. So may the target of the debugger, which polls
    the debugger several times a second, between runs that may be cut anywhere.
    """
    waits = [ROOT / "emu" / name for name in (
        "host/portable.py", "qemu/machine.py", "qemu/gdb_remote.py", "gdb/target.py")]
    for path in (ROOT / "emu").rglob("*.py"):
        if path in waits:
            continue
        assert "time" not in set(imports(path)), path
        assert "datetime.now" not in path.read_text() and "utcnow" not in path.read_text()


ONLY_LINUX = re.compile(
    r"memfd_create|MFD_|\bprctl|(?<!linux\.)\bptrace\(|/proc/|sched_getaffinity|MADV_|NORESERVE"
    r"|os\.(copy_file_range|pidfd|eventfd)|fallocate|epoll|O_TMPFILE|setpriv")


def test_calls_and_files_of_linux_are_used_in_one_file():
    """setup.py, which runs before our modules exist, asks whether a call is there."""
    found = {str(path.relative_to(ROOT)) for path in [*FILES, *NATIVE, *ROOT.glob("*.py")]
             for line in path.read_text("utf-8").splitlines()
             if ONLY_LINUX.search(line.partition("#")[0])}
    assert found - {"emu/host/linux.py"} == {"setup.py"}


def test_no_module_unpickles_data_or_evaluates_code():
    for path in FILES:
        assert "pickle" not in set(imports(path)), path
        calls = {n.func.id for n in ast.walk(ast.parse(path.read_text()))
                 if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not calls & {"eval", "exec"}, path


NUMBER = re.compile(r"^\s*(?:cdef (?:enum )?\w+ )?([A-Z][A-Z0-9_]{3,}) *= *(?:0x[0-9a-fA-F]+|\d+)",
                    re.M)


def test_a_constant_of_native_code_is_not_defined_again():
    """Compare the constants of Cython and Python files in emu and kinst.

    The bounds that each reader of untrusted data defines for itself are not shared.
    """
    native = {name: path for path in (ROOT / "emu" / "unicorn").glob("_*.p[yx][xdi]")
              for name in NUMBER.findall(path.read_text())}
    native |= {name: path for path in (ROOT / "kinst").glob("**/_*.p[yx][xdi]")
               for name in NUMBER.findall(path.read_text())}
    assert {"SLOT", "MAX_STOPS", "STOP_ADDRESS"} <= native.keys()
    for path in FILES:
        if path.relative_to(ROOT).parts[0] not in ("emu", "kinst"):
            continue
        again = {n for n in NUMBER.findall(path.read_text())
                 if n in native} - {"MAX_REGISTERS"}  # also the name of a gdb protocol constant
        assert not again, f"{path}: {again}"


def test_every_package_is_installed():
    """The patterns in pyproject.toml find every directory with Python files."""
    packages = find_packages(str(ROOT), **PROJECT["tool"]["setuptools"]["packages"]["find"])
    assert sorted(packages) == sorted({
        ".".join(path.parent.relative_to(ROOT).parts) for path in FILES})


def test_the_documentation_lists_every_file_of_an_architecture():
    """Check that docs/house.md names each file that all architectures have."""
    needed = []
    for room in ("emu", "emu/unicorn", "emu/qemu", "emu/guests/freebsd", "kinst"):
        names = [{path.name for path in (ROOT / room / arch).iterdir()
                  if path.suffix in (".py", ".pyx") and path.name != "__init__.py"}
                 for arch in ("amd64", "arm64", "riscv64")]
        needed += sorted(set.intersection(*names))
    page = (ROOT / "docs" / "house.md").read_text()
    table = page[page.index("**An architecture.**"):page.index("## Twins")]
    assert len(needed) == 21
    assert [name for name in needed if f"`{name}`" not in table] == []


def test_programs_and_tests_import_only_project_modules_that_exist():
    """mypy does not report missing modules, because tests/mypy.ini sets ignore_missing_imports."""
    programs = [path for path in (ROOT / "bench").iterdir()
                if path.is_file() and path.suffix in ("", ".py")]
    modules = set[str]()
    for path in [*programs, *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        modules |= {name for name in imports(path) if name.split(".")[0] in ROOMS}
    assert len(modules) > 100
    assert not [name for name in sorted(modules) if importlib.util.find_spec(name) is None]
