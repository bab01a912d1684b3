"""Fuzzers of file formats: each runs the commands that read its format on damaged files.

There is one fuzzer for each format in ``FORMATS``. It makes a valid file once, changes it at
random, and lets a command read it in a separate process. The command may read the file or refuse it
with a one-line message. A traceback, a fatal signal, more than ``LONGEST`` seconds or more than
``LARGEST`` bytes of memory are bugs.

Covered elsewhere: D source (``d_programs``), packets (``gdb_packets``), the JSON of a state with a
correct checksum (``states``), debug data below the native readers (``bench/fuzz-dwarf``). Left out
are disks and programs, which need a FreeBSD kernel. Damaged kernels run with an instruction limit:
a kernel that loops would run for 20 billion instructions.
"""

import os
import re
import shlex
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import catalog
from tests.conftest import ARCHES
from tests.ctfwriter import Ctf
from tests.elfwriter import Elf
from tests.forked import completed
from tests.fuzzing.changes import bytes_changed, text_changed
from tests.fuzzing.sealed import parts_changed, snapshot_changed, store_changed
from tests.modulewriter import KernelModule

LONGEST = 10.0  # time limit for a command, in seconds
LARGEST = 2 << 30  # memory limit for a command, in bytes
MOST_LINES = 12  # maximum number of lines that a command writes to standard error


class FoundError(Exception):
    """Error that reports a bug in how a command handles a file."""


@dataclass(frozen=True)
class Format:
    """A file format, with its generator of valid files and the commands that read the format.

    :param made: makes a valid file of an architecture; returns its content and its relevant parts
    :param commands: the commands, with ``{file}`` for the damaged file, ``{good}`` for the valid
        one, and ``{kernel}`` for the undamaged kernel
    """

    made: Callable[[str, Path], tuple[bytes, Sequence[range]]]
    commands: tuple[str, ...]
    changed: Callable[[Any, bytes, Sequence[range]], bytes] = bytes_changed
    arches: Sequence[str] = ARCHES


@dataclass
class Ground:
    """Valid files keyed by architecture, and a directory for files and a private cache."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    good: dict[str, tuple[bytes, Sequence[range]]] = field(default_factory=dict)


@dataclass(frozen=True)
class FileFuzzer:
    """The fuzzer of one format, with the interface that ``bench/fuzz`` expects."""

    format: Format

    def ground(self) -> Ground:
        return Ground()

    def once(self, rng: Any, ground: Ground) -> str:
        arch, folder = rng.choice(self.format.arches), Path(ground.folder.name)
        path = folder / "damaged"
        if arch not in ground.good:
            ground.good[arch] = self.format.made(arch, folder)
            path.with_name(f"whole-{arch}").write_bytes(ground.good[arch][0])
            for command in self.format.commands:
                path.write_bytes(ground.good[arch][0])
                if self._run(command, path, arch) != "read":
                    raise FoundError(f"a command refused a valid file: {command}")
        path.unlink(missing_ok=True)
        path.write_bytes(self.format.changed(rng, *ground.good[arch]))
        return self._run(rng.choice(self.format.commands), path, arch)

    def _run(self, command: str, path: Path, arch: str) -> str:
        names = {"{file}": str(path), "{good}": str(path.with_name(f"whole-{arch}")),
                 "{arch}": arch, "{kernel}": kernel(arch)}
        for name, value in names.items():
            command = command.replace(name, value)
        return run(command, path.parent)


def kernel(arch: str) -> str:
    """Return the path of an architecture's teaching kernel."""
    return str(catalog.find(f"teaching/{arch}").path)


def run(command: str, folder: Path) -> str:
    """Run a command that reads a file, and return ``read`` or ``refused``.

    :raises FoundError: the command ends with a traceback or exceeds a limit
    """
    program, *words = shlex.split(command)
    cache = os.environ.get("KINST_CACHE")
    os.environ["KINST_CACHE"] = str(folder / "cache")
    begin = time.monotonic()
    try:
        done = completed(f"kinst_emu.commands.{program}", words)
    finally:
        os.environ.pop("KINST_CACHE")
        if cache is not None:
            os.environ["KINST_CACHE"] = cache
    seconds = time.monotonic() - begin
    message = f"{command}: {done.stderr[-400:]}"
    if "Traceback" in done.stderr + done.stdout or done.returncode not in (0, 1, 2):
        raise FoundError(f"a command exited with status {done.returncode}: {message}")
    if seconds > LONGEST:
        raise FoundError(f"a command took too long, {seconds:.1f} s: {message}")
    if done.peak > LARGEST:
        raise FoundError(f"a command used too much memory, {done.peak >> 20} MiB: {message}")
    if done.returncode and not done.stderr.strip() and not done.stdout.strip():
        raise FoundError(f"a command failed silently with status {done.returncode}: {message}")
    if done.stderr.count("\n") > MOST_LINES:
        raise FoundError(f"a command wrote too many lines of errors, {done.stderr.count(chr(10))}: "
                         f"{message}")
    return "refused" if re.search(r"^(kinst|dtrace|kdtrace): ", done.stderr, re.M) else "read"


def sections(content: bytes, wanted: str = "") -> list[range]:
    """Return the byte ranges of an ELF file's sections that have a given prefix in their names.

    Without a prefix, the ranges of all sections, the header and the tables are returned.
    """
    (table,) = struct.unpack_from("<Q", content, 40)
    size, count, names = struct.unpack_from("<HHH", content, 58)
    rows = [struct.unpack_from("<IIQQQQ", content, table + number * size)
            for number in range(count)]
    text = content[rows[names][4] : rows[names][4] + rows[names][5]]
    ranges = []
    for name, kind, _flags, _address, offset, length in rows:
        spelled = text[name : text.index(b"\0", name)].decode()
        if kind != 8 and length and spelled.startswith(wanted):
            ranges.append(range(offset, offset + length))
    return ranges if wanted else [*ranges, range(64), range(64, 400), range(table, len(content))]


def whole(arch: str, _folder: Path) -> tuple[bytes, Sequence[range]]:
    """Return a teaching kernel and the byte ranges of all its sections."""
    content = Path(kernel(arch)).read_bytes()
    return content, sections(content)


def debug(arch: str, _folder: Path) -> tuple[bytes, Sequence[range]]:
    """Return a teaching kernel and the byte ranges of its debug sections."""
    content = Path(kernel(arch)).read_bytes()
    return content, sections(content, ".debug")


def module(arch: str, _folder: Path) -> tuple[bytes, Sequence[range]]:
    """Return the contents of a kernel module and an empty list of byte ranges."""
    content = KernelModule(arch=arch, outside="strlen", depends=()).build()
    return content, []


def ctf(arch: str, _folder: Path) -> tuple[bytes, Sequence[range]]:
    """Return an ELF file that has a CTF section, and the range of this section."""
    writer = Ctf(3)
    integer = writer.integer("int", 4, flags=1)
    writer.structure("node", 8, ("first", integer, 0), ("second", integer, 32))
    writer.enumeration("color", 4, ("RED", -1), ("BLUE", 7))
    content = Elf(arch, others={".SUNW_ctf": writer.build()}).build()
    return content, sections(content, ".SUNW")


def written(*words: str) -> Callable[[str, Path], tuple[bytes, Sequence[range]]]:
    """Return a function that runs commands and returns the contents of the file that they write.

    In the commands, ``{good}`` stands for the path of that file.
    """
    def made(arch: str, folder: Path) -> tuple[bytes, Sequence[range]]:
        for command in words:
            result = run(command.replace("{good}", str(folder / "good"))
                         .replace("{kernel}", kernel(arch)), folder)
            assert result == "read", command
        content = max(folder.glob("good*"), key=lambda path: len(path.name)).read_bytes()
        for path in folder.glob("good*"):
            path.unlink()
        return content, []

    return made


def text(*lines: str) -> Callable[[str, Path], tuple[bytes, Sequence[range]]]:
    """Return a function that returns a text file of the given lines."""
    return lambda _arch, _folder: ("".join(f"{line}\n" for line in lines).encode(), [])


RELOCATOR = Path(__file__).with_name("relocator.py")
RECORD = "kinst call -k {kernel} 'fibonacci(6)' --record {good}"
FORMATS = {
    "kernel": Format(whole, (
        "kinst disas -k {file} strlen", "kinst type -k {file} 'struct note'",
        "kinst inline -k {file} mix", "kinst line -k {file} string.c:6",
        "kinst boot -k {file} --instructions 3000000",
        "kinst relocate -k {file} strlen --states 1")),
    "debug": Format(debug, (
        "kinst type -k {file} 'struct note'", "kinst type -k {file} strtoul",
        "kinst inline -k {file} mix --dwarf", "kinst line -k {file} lesson.c:25",
        "kinst disas -k {file} account")),
    "ctf": Format(ctf, ("kinst type -k {file} 'struct node'", "kinst type -k {file} 'enum color'",
                        "kinst type -k {file} int")),
    "module": Format(module, (
        "kinst disas -k {kernel} --module {file} f", "kinst boot -k {kernel} --module {file} "
        "--instructions 3000000", "kdtrace -k {kernel} --module {file} -ln 'fbt:::entry'")),
    "recording": Format(written(RECORD), (
        "kinst replay -k {kernel} {file} --to end", "kinst replay -k {kernel} {file} --json",
        "kinst replay -k {kernel} {file} --origin sp", "kinst diff {file} {good}",
        "kdtrace -k {kernel} --replay {file} -qn 'fbt::fibonacci:entry { @ = count(); }'"),
        parts_changed),
    "snapshot": Format(written("kinst boot -k {kernel} --save {good}"), (
        "kinst boot -k {kernel} --restore {file} --instructions 3000000 --digest",),
        snapshot_changed),
    "trace": Format(written(RECORD, "kinst replay -k {kernel} {good} --trace-insns 0%:100% "
                            "--registers --stores -o {good}.trace"), tuple(
        f"kinst trace -k {{kernel}} {{file}} --as {kind} -o /dev/null"
        for kind in ("text", "json", "calls", "tree", "perfetto", "flame")), parts_changed),
    "store": Format(written("kinst relocate -k {kernel} strlen --states 1 --store {good}"), (
        "kinst report {file}", "kinst report {file} --json",
        "kinst relocate -k {kernel} strlen --states 1 --store {file}"), store_changed),
    "encodings": Format(text("c3", "1f2003d5", "13000000", "9090", "e8 00 00 00 00"), (
        "kinst relocate --arch {arch} --encodings {file} --states 1",), text_changed),
    "corpus": Format(text("# calls", "strlen(\"a\")", "n = strlen(\"b\"); fibonacci(n)",
                          "account(3)"), (
        "kinst explore -k {kernel} --pairs {file} --limit 10 --schedules 5",), text_changed),
    "program": Format(lambda arch, _folder: (
        (content := (Path(kernel(arch)).parent / "work.debug").read_bytes()),
        sections(content)), ("kinst relocate --program {file} --states 1",)),
    "script": Format(text("BEGIN { trace(1); exit(0); }", "fbt::strlen:entry / arg0 / {",
                          "  @[probefunc, stack(2)] = quantize(arg0); self->n = timestamp; }"), (
        "kdtrace -k {kernel} -qs {file} -c 'strlen(\"a\")'",), text_changed),
    "answers": Format(text("right"), (
        "kinst trial --arch {arch} --assemble 'ret; nop' --relocator "
        f"'{sys.executable} {RELOCATOR} {{file}}'",),
        lambda rng, _content, _ranges: str(rng.randrange(1 << 30)).encode(),
        ("amd64", "arm64")),  # Keystone assembles only for these architectures
}
FUZZERS = {name: FileFuzzer(one) for name, one in FORMATS.items()}
