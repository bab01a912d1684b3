"""Tests of boot options in the loader metadata that a FreeBSD kernel reads."""

import json
import struct
from dataclasses import replace

import pytest

from emu.elf.boot_options import boot_options
from emu.elf.image import file_symbols
from emu.guests.freebsd import records
from emu.host.errors import ImageError, KinstError
from emu.machine.machine import Until
from emu.replay import recording
from emu.replay.inputs import ReplayError
from emu.replay.parts import PartWriter
from emu.replay.recording import Recorder, Recording, _start_from_json, _start_to_json
from emu.replay.starts import BOOT
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.recordings import played
from tests.conftest import ARCHES, MEMORY
from tests.kinst_emu.commands.test_commands import run

DISK = bytes(range(256)) * 4


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk.img"
    path.write_bytes(DISK)
    return path


def rows(data, at):
    """Return (type, content) of the metadata records from an offset up to the terminator."""
    found = []
    while True:
        kind, size = struct.unpack_from("<II", data, at)
        if not kind:
            return found
        found.append((kind, data[at + 8 : at + 8 + size]))
        at += 8 + size + 7 & -8


def number(content):
    return int.from_bytes(content, "little")


@pytest.mark.parametrize("arch", ARCHES)
def test_loader_metadata_contains_disk_environment_and_flags(arch, disk):
    kernel = catalog.find(f"teaching/{arch}")
    image = replace(kernel, options=boot_options(["a.b=c d"], "-sv", disk))
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    low = min(s.virtual for s in image.segments)
    # Addresses in the metadata are physical on amd64.  Elsewhere they are virtual, and the image is
    # loaded 2 MiB into RAM.
    bias = 0 if arch == "amd64" else machine.board.ram_base + (2 << 20) - low
    memory = machine.read_physical(machine.board.ram_base, 64 << 20)
    begin = memory.index(records.record(records.NAME, b"/boot/kernel/kernel\0"))
    found = rows(memory, begin)
    at = found.index((records.TYPE, records.DISK))
    assert found[at - 1][0] == records.NAME
    (_, address), (_, size) = found[at + 1 : at + 3]
    by_kind = dict(found)
    where = number(address) + bias
    assert number(size) == len(DISK) and where % 4096 == 0
    assert machine.read_physical(where, len(DISK)) == DISK
    assert number(by_kind[records.METADATA | records.HOWTO]) & 0x802 == 0x802
    text = machine.read_physical(number(by_kind[records.METADATA | records.ENVP]) + bias, 4096)
    strings = text[: text.index(b"\0\0")].split(b"\0")
    assert b"a.b=c d" in strings and b"vfs.root.mountfrom=ufs:/dev/md0" in strings
    assert where + len(DISK) <= number(by_kind[records.METADATA | records.KERNEND]) + bias
    start = number(by_kind[records.METADATA | records.SSYM])
    end = number(by_kind[records.METADATA | records.ESYM])
    table = machine.read_physical(start + bias, end - start)
    entries, texts, _build_id = file_symbols(machine.image.file)
    size = number(table[:8])
    assert table[8 : 8 + size] == entries and size == len(entries)
    assert number(table[8 + size : 16 + size]) == len(texts)
    assert table[16 + size :].rstrip(b"\0") == texts.rstrip(b"\0")


def test_given_variables_override_the_loader_defaults(disk):
    options = boot_options(["console=vidconsole", "vfs.root.mountfrom=ufs:/dev/vtbd0"], "", disk)
    text = records.environment(options, ["console=comconsole", "x=y"])
    assert text == b"console=vidconsole\0x=y\0vfs.root.mountfrom=ufs:/dev/vtbd0\0\0"


def test_boot_options_are_part_of_the_image_identity(disk):
    kernel = catalog.find("teaching/amd64")
    others = [boot_options([], "", None), boot_options(["a=b"], "", None),
              boot_options([], "v", None), boot_options([], "", disk)]
    names = {replace(kernel, options=options).identity for options in others}
    assert len(names) == 4 and kernel.identity in names
    disk.write_bytes(DISK[::-1])
    assert replace(kernel, options=boot_options([], "", disk)).identity not in names


@pytest.mark.parametrize("text", ["A", "=b", "1=2", "a b=c", "a=\n", "a=" + "x" * 600])
def test_a_malformed_loader_variable_is_refused(text):
    with pytest.raises(KinstError, match="NAME=VALUE"):
        boot_options([text], "", None)


def test_an_unknown_boot_flag_is_refused():
    with pytest.raises(ImageError, match="unknown boot flag -q"):
        records.howto(boot_options([], "-sq", None))


@pytest.mark.parametrize(("content", "said"), [(b"x" * 700, "700 bytes"), (b"", "is empty")])
def test_a_memory_disk_of_invalid_size_is_refused(tmp_path, content, said):
    path = tmp_path / "d"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=said):
        boot_options([], "", path)


def test_boot_flags_may_begin_with_a_dash():
    for words in (["--append", "-s"], ["--append=-s"], ["--append", "s"]):
        done = run("kinst", "boot", "-k", "teaching/amd64", "-q", "--digest", *words)
        assert done.returncode == 0, done.stderr
    done = run("kinst", "boot", "-k", "teaching/amd64", "--append", "-q")
    assert done.returncode == 1 and "unknown boot flag -q" in done.stderr


@pytest.fixture
def recorded(disk, tmp_path):
    """Record a boot with every kind of boot option and return the path of the recording."""
    options = boot_options(["a=b"], "v", disk, [disk, disk])
    image = replace(catalog.find("teaching/riscv64"), options=options)
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    path = tmp_path / "x.rec"
    with Recorder(machine, path, BOOT, "boot"):
        machine.run(Until(instructions=5000))
    return path


def test_a_recording_contains_the_boot_options_and_the_disks(recorded, disk):
    disk.unlink()
    player = played(recorded)
    options = player.machine.image.options
    assert (options.environment, options.flags) == (("a=b",), "v")
    assert [bytes(one.content) for one in options.every_disk] == [DISK] * 3
    assert len(options.disks) == 2
    assert player.advance_to_end() is None and player.difference() == ""


def test_a_recording_with_the_wrong_number_of_disks_is_refused(recorded, tmp_path):
    found = Recording(recorded)
    start, reader = found.start, found._reader
    kinds = [part[0] for part in reader.parts]
    assert kinds[:4] == [recording.START, *[recording.DISK] * 3]
    for disks, said in ((2, "before its disks"), (4, "damaged")):
        path = tmp_path / f"{disks}.rec"
        writer = PartWriter(path, [(recording.START, _start_to_json(start))])
        for _ in range(disks):
            writer.write(recording.DISK, DISK)
        writer.close()
        with pytest.raises(ReplayError, match=said):
            assert Recording(path).options


@pytest.mark.parametrize("content", [b"", bytes(513)])
def test_a_recording_with_a_disk_of_invalid_size_is_refused(recorded, tmp_path, content):
    path = tmp_path / "odd.rec"
    writer = PartWriter(path, [(recording.START, _start_to_json(Recording(recorded).start))])
    for one in (DISK, content, DISK):
        writer.write(recording.DISK, one)
    writer.close()
    with pytest.raises(ReplayError, match="contains a disk of invalid size"):
        assert Recording(path).options


@pytest.mark.parametrize("change", [
    {"environment": ["no assignment"]}, {"environment": ["a=b"] * 257}, {"flags": "-; rm"},
    {"flags": 3}, {"memory_disk": 1}, {"disks": -1}, {"disks": 5}, {"disks": True},
])
def test_a_recording_with_impossible_boot_options_is_refused(recorded, change):
    row = json.loads(_start_to_json(Recording(recorded).start))
    assert _start_from_json(row).disks == 2
    with pytest.raises((ValueError, TypeError)):
        _start_from_json(row | change)


def test_the_teaching_kernel_refuses_a_memory_disk(disk):
    done = run("kinst", "boot", "-k", "teaching/arm64", "--memory-disk", str(disk))
    assert done.returncode == 1 and "no file systems" in done.stderr


def test_kinst_boot_reports_a_missing_disk_in_one_line(tmp_path):
    done = run("kinst", "boot", "-k", "teaching/amd64", "--memory-disk", str(tmp_path / "none"))
    assert done.returncode == 1 and done.stderr == (
        f"kinst: {tmp_path / 'none'}: cannot be read: No such file or directory\n")
