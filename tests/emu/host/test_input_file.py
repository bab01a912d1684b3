"""Tests that a later change to an input file either has no effect or raises an error."""

import dataclasses
import os
import pickle
import shutil
import struct
import threading
import time
from pathlib import Path

import pytest

import kinst_emu
from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from emu.elf.boot_options import COPIED, NOTHING, disk_image
from emu.elf.image import Image, Segment, load_image
from emu.elf.reader import read_file
from emu.host.errors import ImageError
from emu.host.input_file import HeldFile, taken
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import boot_to_prompt, booted, settle_at_reader
from tests.changing_files import Files
from tests.conftest import ARCHES
from tests.modulewriter import KernelModule

FEW = 1 << 20
OPERATIONS = 2000  # number of operations on changing files


@pytest.fixture(params=ARCHES)
def kernel(request, tmp_path, monkeypatch):
    """Copy a teaching kernel, select a private cache directory, and return the copy's path."""
    monkeypatch.setenv("KINST_CACHE", str(tmp_path / "cache"))
    return shutil.copy(catalog.find(f"teaching/{request.param}").path, tmp_path / "kernel")


def answer_42(content, image):
    """Return a kernel's bytes with ``strlen`` replaced by code that returns 42."""
    code = {"amd64": b"\xb8\x2a\0\0\0\xc3", "arm64": struct.pack("<II", 0x52800540, 0xD65F03C0),
            "riscv64": struct.pack("<II", 0x02A00513, 0x00008067)}[kinst_emu.open(image).arch]
    found = load_image(image)
    address = found.symbols.find("strlen").address
    (segment,) = (s for s in found.file.segments if s.virtual <= address < s.virtual + s.in_file)
    at = segment.offset + address - segment.virtual
    return content[:at] + code + content[at + len(code) :]


def test_an_open_kernel_keeps_its_code_and_debug_data_when_truncated(kernel):
    opened = kinst_emu.open(kernel)
    os.truncate(kernel, 0)
    machine = opened.boot("64M")
    assert machine.call("strlen", "abc") == 3
    image = machine.kernel.image
    assert "string.c:" in Sources(image).line(image.symbols.find("strlen").address)
    assert debug_index(image).named("strlen")


def test_a_kernel_patched_in_place_changes_only_when_it_is_opened_again(kernel):
    first = kinst_emu.open(kernel)
    assert first.boot("128M").call("strlen", "abc") == 3
    patched = answer_42(kernel.read_bytes(), kernel)
    with kernel.open("r+b") as file:
        file.write(patched)
    assert first.boot("64M").call("strlen", "abc") == 3
    assert kinst_emu.open(kernel).boot("64M").call("strlen", "abc") == 42
    assert first.boot("64M").call("strlen", "abc") == 3


@pytest.mark.parametrize("first", [0, 1])
def test_kernels_that_differ_in_a_symbol_have_separate_cached_boots(kernel, first):
    content = kernel.read_bytes()
    other = kernel.with_name("other")
    other.write_bytes(content.replace(b"\0cngetc\0", b"\0xngetc\0"))
    paths = [kernel, other]
    booted(load_image(paths[first]), FEW * 64)
    for path in paths:
        image = load_image(path)
        alone = UnicornMachine(image, FEW * 64)
        alone.boot()
        boot_to_prompt(alone)
        settle_at_reader(alone)
        assert booted(image, FEW * 64).digest() == alone.digest()
    assert load_image(paths[0]).identity != load_image(paths[1]).identity


CHANGED = {
    "entry": lambda image: image.entry + 4,
    "segments": lambda image: image.segments[1:],
    "symbols": lambda image: type(image.symbols)(*(image.symbols.tables[0][:-24],
                                                   image.symbols.tables[1])),
    "build_id": lambda image: image.build_id + "00",
    "modules": None,  # tested in tests/emu/elf/test_kernel_module.py
    "options": lambda _image: dataclasses.replace(NOTHING, flags="v"),
    "states": None,  # versions of the files, whose content the other fields hold
    "known": None,  # this identity counts only while the kernel is the same
    "file": None,  # the other fields are read from this file
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Image)])
def test_the_identity_covers_every_field_of_an_image(name):
    image = catalog.find("teaching/amd64")
    change = CHANGED[name]
    if change is not None:
        assert dataclasses.replace(image, **{name: change(image)}).identity != image.identity


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Segment)])
def test_the_identity_covers_every_field_of_a_segment(name):
    image = catalog.find("teaching/amd64")
    segment = image.segments[0]
    value = getattr(segment, name)
    other = dataclasses.replace(segment, **{
        name: value + 4096 if isinstance(value, int) else memoryview(bytes(value[:-1]))})
    changed = dataclasses.replace(image, segments=(other, *image.segments[1:]))
    assert changed.identity != image.identity


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_an_invalid_file_name_is_refused(name):
    with pytest.raises(ImageError, match="not a valid file name"):
        load_image(Path(name))


@pytest.mark.parametrize("make", [
    lambda path: os.mkfifo(path), lambda path: path.mkdir(), lambda path: path.write_bytes(b""),
    lambda path: path.symlink_to("/dev/zero")], ids=["FIFO", "directory", "empty", "device"])
def test_special_and_empty_files_are_refused_in_one_line(tmp_path, make):
    """Special files are refused without reading, since a FIFO or /dev/zero would never end."""
    path = tmp_path / "kernel"
    make(path)
    for read in (load_image, disk_image):
        with pytest.raises(ImageError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: is ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x7fELF"])
def test_a_file_larger_than_the_limit_is_refused(tmp_path, content):
    path = tmp_path / "kernel"
    path.write_bytes(content)
    os.truncate(path, 3 << 30)
    with pytest.raises(ImageError, match=r"has 3221225472 bytes; the limit is 2147483648"):
        load_image(path)


def test_only_the_first_bytes_of_a_large_non_elf_file_are_read(tmp_path):
    path = tmp_path / "kernel"
    path.write_bytes(b"text")
    os.truncate(path, 1 << 30)
    assert len(read_file(path).content) == 4
    with pytest.raises(ImageError, match="not an ELF file"):
        load_image(path)


def test_a_file_that_changes_during_reading_is_read_consistently_or_refused(tmp_path):
    """A thread repeatedly fills the file with one byte value; a copy must not mix two values."""
    path = tmp_path / "kernel"
    size = 1 << 20
    path.write_bytes(bytes(size))
    ended = threading.Event()

    def write():
        value = 0
        with path.open("r+b", buffering=0) as file:
            while not ended.is_set():
                value = (value + 1) % 256
                os.pwrite(file.fileno(), bytes([value]) * size, 0)
                time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    whole = refused = 0
    try:
        until = time.monotonic() + 20
        while (whole < 5 or refused < 5) and time.monotonic() < until:
            try:
                found = bytes(taken(path, size).content)
            except ImageError as error:
                assert "changed while it was read" in str(error)
                refused += 1
            else:
                assert found == found[:1] * size
                whole += 1
    finally:
        ended.set()
        writer.join()
    assert whole


def test_changing_a_large_disk_in_use_raises_an_error(tmp_path):
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(COPIED + 512)
        file.seek(COPIED)
        file.write(b"x" * 512)
    disk = disk_image(path)
    assert isinstance(disk.content, HeldFile) and len(disk.content) == COPIED + 512
    assert bytes(disk.content[COPIED : COPIED + 1024]) == b"x" * 512
    digest = disk.digest
    with path.open("r+b") as file:
        file.write(b"other")
    with pytest.raises(ImageError, match="changed while it was in use"):
        disk.content[COPIED:]
    assert disk_image(path).digest != digest
    os.truncate(path, 0)
    with pytest.raises(ImageError, match="changed while it was in use"):
        disk.content[:512]


def test_replacing_a_large_disk_in_use_does_not_change_its_content(tmp_path):
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(COPIED + 512)
    disk = disk_image(path)
    other = tmp_path / "other"
    other.write_bytes(b"other" * 1000)
    content = bytes(disk.content[:512])
    os.replace(other, path)
    # The open inode keeps its contents, but its changed timestamps may cause an error.
    try:
        assert bytes(disk.content[:512]) == content
    except ImageError as error:
        assert "changed while it was in use" in str(error)


def test_small_disks_and_memory_disks_are_copied(tmp_path):
    path = tmp_path / "disk"
    path.write_bytes(b"a" * 512)
    disk = disk_image(path)
    path.write_bytes(b"b" * 512)
    assert bytes(disk.content) == b"a" * 512
    with path.open("wb") as file:
        file.truncate(COPIED + 512)
    assert isinstance(disk_image(path, in_memory=True).content, memoryview)


def test_an_open_file_cannot_be_pickled(tmp_path):
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(COPIED + 512)
    with pytest.raises(TypeError, match="an open file cannot be copied"):
        pickle.dumps(disk_image(path))


def test_held_files_are_closed_with_their_owner(tmp_path):
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(COPIED + 512)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        disk_image(path)
    assert len(os.listdir("/proc/self/fd")) == before


def stripped(content):
    """Return a kernel's bytes with one symbol name changed, as if the symbol were stripped."""
    return content.replace(b"\0cngetc\0", b"\0xngetc\0")


def test_boots_use_the_opened_bytes_whatever_happens_to_the_files(tmp_path, monkeypatch):
    """The kernel file alternates among four kernels, two of which lack a symbol.

    tests/real covers disks.
    """
    monkeypatch.setenv("KINST_CACHE", str(tmp_path / "cache"))
    source = catalog.find("teaching/amd64").path
    plain = source.read_bytes()
    other = answer_42(plain, source)
    kernels = [plain, other, stripped(plain), stripped(other)]
    assert len(set(kernels)) == 4 and len({len(content) for content in kernels}) == 1
    modules = [KernelModule(outside="strlen", depends=(), text=text).build()
               for text in (b"\x55\xe8\0\0\0\0\x5d\xc3", b"\x53\xe8\0\0\0\0\x5b\xc3")]
    files = Files(tmp_path, kernels, modules)
    assert len(files.digests) == 12
    files.run(OPERATIONS, 54)
    assert files.done["boot"] > OPERATIONS // 4, files.done
