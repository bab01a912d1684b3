"""``kinst doctor``: show what is installed, what is missing for which command, and the caches."""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from emu.host import extras
from emu.host.errors import KinstError
from emu.host.system import processors
from images import catalog
from images.cache import cache_directory
from images.compiler import tool

BLOCK = 512  # unit in bytes of st_blocks (stat(2)); files with RAM have holes
OK, MISSING, WRONG = STATES = "ok", "missing", "wrong"
LIBRARIES = ("unicorn", "capstone", "pyelftools")
MOST_FILES = 100_000  # maximum number of files whose sizes are added
MADE_HERE = ("teaching/", "races/")  # kernels that this project builds
# (programs of which one is needed, what needs it, Debian packages)
TOOLS = (
    (("clang",), "C files as workloads, kinst images build", "clang"),
    (("ld.lld",), "C files as workloads, kinst images build", "lld"),
    (("cpp",), "kdtrace -C", "cpp"),
    (("qemu-system-x86_64",), "kinst xval and --qemu on amd64", "qemu-system-x86 seabios"),
    (("qemu-system-aarch64",), "kinst xval and --qemu on arm64", "qemu-system-arm"),
    (("qemu-system-riscv64",), "kinst xval and --qemu on riscv64", "qemu-system-misc opensbi"),
    (("gdb-multiarch", "gdb"), "the examples of --gdb", "gdb-multiarch"),
    (("dot",), "kinst locks --graph FILE.svg", "graphviz"),
    (("genhtml",), "pages from the files of kinst coverage", "lcov"),
)
# Programs that are also used with a version in their name, such as clang-19 -> all names
VERSIONED = {"clang": ("clang",), "ld.lld": ("ld.lld",)}
# Where native_cache.py keeps compiled modules
NATIVE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
              ) / "kinst-emu-native"
# Extra -> what needs it
USES = {
    "assembler": "--assemble of relocate and trial; QEMU on amd64",
    "shell": "kinst shell, notebooks", "pictures": "kinst explain --gif", "plot": "kdtrace --plot",
    "perfetto": "kinst trace --as perfetto", "cluster": "--cluster of relocate, trial and explore",
}

EXAMPLES = (
    "kinst doctor",
    "kinst doctor --json",
)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    :param part: heading under which it is shown.
    :param state: one of ``STATES``; wrong: it is there, but cannot be used.
    :param found: version, path or size; empty if missing.
    :param needed: what needs it.
    :param advice: how to install or correct it; empty if it is ok.
    """

    part: str
    name: str
    state: str
    found: str = ""
    needed: str = ""
    advice: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst doctor``."""
    parser.add_argument("--json", action="store_true",
                        help="print the findings as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if something is wrong."""
    found = [*_host(), *_libraries(), *_kernels(), *_tools(), *_extras(), *_places()]
    if arguments.json:
        print(json.dumps([asdict(one) for one in found]))
    else:
        part = ""
        for one in found:
            if one.part != part:
                part = one.part
                print(f"{part}:")
            detail = one.found if one.state == OK else f"for {one.needed}" if one.needed else ""
            print(f"  {one.state:<8} {one.name:<20} {detail}".rstrip())
            if one.advice:
                print(f"           {one.advice}")
    return 1 if any(one.state == WRONG for one in found) else 0


def _host() -> Iterator[Finding]:
    yield Finding("host", "system", OK, f"{platform.system()} on {platform.machine()}")
    yield Finding("host", "Python", OK, platform.python_version())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    yield Finding("host", "processors", OK, f"{processors()}, {memory} MiB of "
                  "memory; --jobs uses several processors")


def _libraries() -> Iterator[Finding]:
    for name in ("kinst-emu", *LIBRARIES):
        try:
            yield Finding("libraries", name, OK, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("libraries", name, WRONG, "", "every command",
                          "install kinst-emu again (docs/install.md)")


def _kernels() -> Iterator[Finding]:
    for one in catalog.known():
        made_here = one.name.startswith(MADE_HERE)
        if one.path is None:
            yield Finding("kernels", one.name, MISSING, "", "the examples without a download"
                          if made_here else "commands with this kernel", one.origin)
            continue
        has_base = not made_here and (one.path.parent / catalog.ROOT_FILE).is_file()
        yield Finding("kernels", one.name, OK, str(one.path) + ", with a base system" * has_base)


def _tools() -> Iterator[Finding]:
    for names, needed, packages in TOOLS:
        place = next(filter(None, map(_found, names)), None)
        if place is not None:
            yield Finding("programs", names[0], OK, place, needed)
        else:
            yield Finding("programs", names[0], MISSING, "", needed,
                          f"on Debian: apt-get install {packages}")


def _found(name: str) -> str | None:
    """Return the path of a program as the commands that need it look for it, or None."""
    if name not in VERSIONED:
        return shutil.which(name)
    try:
        return shutil.which(tool(*VERSIONED[name]))
    except KinstError:
        return None


def _extras() -> Iterator[Finding]:
    for extra, needed in USES.items():
        if extras.missing(extra):
            yield Finding("optional packages", extra, MISSING, "", needed, extras.command(extra))
        else:
            yield Finding("optional packages", extra, OK, ", ".join(extras.EXTRAS[extra]), needed)


def _places() -> Iterator[Finding]:
    for name, path, needed, advice in (
            ("cache", cache_directory(), "fast boots and kinst record",
             "KINST_CACHE sets another directory"),
            ("kernels", catalog.data_directory(), "kinst images add, fetch and build",
             "KINST_DATA sets another directory")):
        there = next((one for one in (path, *path.parents) if os.path.exists(one)), path)
        if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
            size, more = _size(path)
            yield Finding("directories", name, OK, f"{path}: {more}{size / (1 << 20):,.0f} MiB")
        else:
            yield Finding("directories", name, WRONG, "", needed, f"{path} cannot be written; "
                          + advice)
    if NATIVE.is_dir():
        size, more = _size(NATIVE)
        yield Finding("directories", "native modules", OK,
                      f"{NATIVE}: {more}{size / (1 << 20):,.0f} MiB")


def _size(directory: Path) -> tuple[int, str]:
    """Return the disk space of a directory in bytes, and "at least " if files were not counted."""
    total = count = 0
    for folder, _folders, files in os.walk(directory):
        for name in files:
            count += 1
            if count > MOST_FILES:
                return total, "at least "
            try:
                total += os.lstat(Path(folder) / name).st_blocks * BLOCK
            except OSError:  # another process has removed the file
                continue
    return total, ""
