"""Snapshot files: self-describing machine states that another process can restore.

Layout: the magic, a u32 format version, a u32 length of the header, a u64 length of the memory
part, the SHA-256 of header and memory part, the header (zstd-compressed JSON), the memory part (one
zstd frame with the pages that the header lists, in that sequence).  Integers are little-endian.
Pages that the kernel's file contains are not stored; the header gives their segment and offset.
"""

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from emu.arch.architectures import arch_of
from emu.devices.device import number
from emu.elf.image import Image
from emu.host.atomic_file import replacing
from emu.host.bounded_json import fits, read_json
from emu.host.errors import ImageError, SnapshotError
from emu.host.input_file import taken
from emu.host.printable import printable
from emu.unicorn import ram_file
from emu.unicorn._engine import EngineError
from emu.unicorn.guest_memory import PAGE, MemoryImage
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import MachineState

MAGIC = b"KINSTSNP"
FORMAT = 5
WITHOUT_IMAGE = 4  # like format 5, but with all pages in the file
HEAD = struct.Struct("<8sIIQ32s")
MAX_FILE = 64 << 30  # maximum size of a snapshot file in bytes
MAX_HEADER = 64 << 20
MAX_VALUES = 1 << 22  # maximum number of JSON values in a header
MAX_CONSOLE = 16 << 20
MOST_PREPARED = 4 << 20  # number of bytes of RAM that are allocated before they are read
LARGE = 4096  # minimum number of pages in RAM that is mapped rather than copied
LEVEL = -1  # fast compression, since commands wait for it: half the time, 25% more disk space
ZERO = bytes(PAGE)


# Exceptions that an invalid state raises while it is restored.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, struct.error,
          EngineError)


def to_json(state: MachineState) -> dict[str, Any]:
    """Convert a state to a JSON-compatible dictionary."""
    return {
        "cpu": state.cpu, "devices": state.devices, "timers": state.timers,
        "instructions": state.instructions, "canonical": state.canonical, "skew": state.skew,
        "arrived": state.arrived, "waiting": state.waiting, "stop": state.stop,
        "panic": state.panic, "console": state.console.hex(),
        **({} if state.turns is None else {"turns": state.turns}),
    }


def from_json(state: dict[str, Any]) -> MachineState:
    """Convert a JSON dictionary to a state.

    :raises: one of DAMAGE, if the dictionary is not a valid state.
    """
    stop, panic = state["stop"], state["panic"]
    console = bytes.fromhex(state["console"])
    turns, skew = state.get("turns"), state["skew"]
    instructions, canonical = number(state["instructions"]), number(state["canonical"])
    if len(console) > MAX_CONSOLE or canonical > instructions or not (
            turns is None or isinstance(turns, dict)):
        raise ValueError("invalid console, instruction counts or turns in the machine state")
    return MachineState(
        state["cpu"], state["devices"],
        {str(name): number(when, 1 << 64) for name, when in state["timers"].items()},
        instructions, canonical, number(skew, 1 << 64 if turns else 1 << 63),
        bool(state["arrived"]), bool(state["waiting"]),
        None if stop is None else (str(stop[0]), str(stop[1])),
        None if panic is None else (int(panic[0]), int(panic[1])),
        console, turns,
    )


def save(machine: UnicornMachine, path: Path) -> None:
    """Write a snapshot file atomically.

    :raises SnapshotError: if it cannot be written.
    """
    if machine.patches:
        raise SnapshotError(f"{path}: probes are enabled: disable them before saving a snapshot")
    if len(machine.console.text) > MAX_CONSOLE:
        raise SnapshotError(f"{path}: cannot save a snapshot after more than {MAX_CONSOLE >> 20} "
                            "MiB of console output")
    memory = machine.memory_part
    pages: list[list[int]] = []
    same: list[list[int]] = []
    file_pages = _image_pages(machine.image)
    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    body = []
    for first, count in memory.used():
        for page in range(first, first + count):
            data = memory.page(page)
            if data == ZERO:
                continue
            if data in file_pages:
                segment, at = file_pages[data]
                if same and same[-1][0] + same[-1][1] == page and same[-1][2] == segment and (
                        same[-1][3] + same[-1][1] * PAGE == at):
                    same[-1][1] += 1
                else:
                    same.append([page, 1, segment, at])
                continue
            if pages and pages[-1][0] + pages[-1][1] == page:
                pages[-1][1] += 1
            else:
                pages.append([page, 1])
            body.append(compressor.compress(data))
    body.append(compressor.flush())
    state = machine.state()
    header = {
        "architecture": machine.arch.name,
        "build_id": machine.image.identity,
        "memory": machine.memory,
        "cpus": len(machine.cpus),
        "pages": pages,
        "image": same,
        "state": to_json(state),
    }
    text = json.dumps(header).encode()
    if not fits(text, MAX_VALUES, MAX_HEADER):
        raise SnapshotError(f"{path}: cannot save a snapshot: the machine's state, with disks but "
                            f"without memory, exceeds {MAX_HEADER >> 20} MiB")
    head = zstandard.ZstdCompressor(level=LEVEL).compress(text)
    raw = b"".join(body)
    digest = hashlib.sha256(head + raw).digest()
    try:
        with replacing(path) as file:
            file.write(HEAD.pack(MAGIC, FORMAT, len(head), len(raw), digest))
            file.write(head)
            file.write(raw)
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be written: {error.strerror}") from None


def _image_pages(image: Image) -> dict[bytes, tuple[int, int]]:
    """Return the pages of the kernel's file as loaded into memory: page -> (segment, offset)."""
    pages: dict[bytes, tuple[int, int]] = {}
    for index, segment in enumerate(image.segments):
        for at in range(-segment.physical % PAGE, len(segment.data) - PAGE + 1, PAGE):
            pages.setdefault(bytes(segment.data[at : at + PAGE]), (index, at))
    return pages


def restore(path: Path, image: Image, mapped: Callable[[str], Path | None] | None = None
            ) -> UnicornMachine:
    """Create a machine in the state of a snapshot file.

    :param mapped: returns where to keep a file from which RAM is mapped, by the snapshot's digest,
        or None if there is no place; None: RAM is always copied from the snapshot.
    :raises SnapshotError: if the file is damaged, has another format or belongs to another image.
    """
    place = None if mapped is None else mapped(_digest_of(path))
    if place is not None:
        ram = ram_file.opened(place, MAX_HEADER)
        if ram is not None:
            try:
                return _restored(path, image, ram.header, None, ram, None)
            except SnapshotError:
                pass  # the file does not belong to this snapshot: make it again
            except OSError:  # the file cannot be mapped
                place = None
    header, body = _read(path)
    return _restored(path, image, header, body, None, place)


def _restored(path: Path, image: Image, text: bytes | memoryview, body: memoryview | None,
              ram: ram_file.RamFile | None, place: Path | None) -> UnicornMachine:
    """Create a machine from a snapshot's header, and its memory part or a file with RAM.

    :param place: where to write such a file; None: nowhere.
    """
    header = _header(text, path)
    try:
        if header["architecture"] != arch_of(image).name or not image.is_known_as(
                str(header["build_id"])):
            raise SnapshotError(
                f"{path}: belongs to another kernel ({header['architecture']}, build ID "
                f"{str(header['build_id'])[:16]}), not to {image.path} with these options; give "
                "the snapshot's kernel, disks and boot options"
            )
        machine = UnicornMachine(image, memory=int(header["memory"]))
        if ram is not None:
            if ram.size != machine.memory:
                raise SnapshotError(f"{path}: belongs to a machine with a different memory size")
            machine.memory_part.restore(MemoryImage(ram))
        if body is not None:
            _restore_image(machine, header.get("image", []), path)
            _restore_memory(machine, header["pages"], body, path)
        ranges = [*header["pages"], *header.get("image", [])]
        pages = [(first, count) for first, count, *_place in ranges]
        if place is not None and sum(count for _first, count in pages) >= LARGE:
            with contextlib.suppress(OSError):  # only the next restore will be slower
                ram_file.write(place, machine.memory_part, pages, bytes(text))
        machine.restore_state(from_json(header["state"]))
    except DAMAGE as error:
        raise SnapshotError(f"{path}: damaged header ({type(error).__name__}: "
                            f"{printable(error)}); create it again") from None
    return machine


def _digest_of(path: Path) -> str:
    """Return the digest in a snapshot file, in hexadecimal, or "" if there is none."""
    with contextlib.suppress(OSError, struct.error), path.open("rb") as file:
        return str(HEAD.unpack(file.read(HEAD.size))[4].hex())
    return ""


def _read(path: Path) -> tuple[memoryview, memoryview]:
    """Return the compressed header and the memory part of a snapshot file.

    :raises SnapshotError: if the file is damaged or has another format.
    """
    try:
        raw = taken(path, MAX_FILE, MAGIC).content
    except ImageError as error:
        raise SnapshotError(str(error)) from None
    if len(raw) < HEAD.size or raw[:8] != MAGIC:
        raise SnapshotError(f"{path}: not a snapshot file")
    _magic, version, head_size, body_size, digest = HEAD.unpack_from(raw)
    if version not in (FORMAT, WITHOUT_IMAGE):
        raise SnapshotError(f"{path}: snapshot format {version} is not supported; this program "
                            f"reads formats {WITHOUT_IMAGE} and {FORMAT}")
    if len(raw) != HEAD.size + head_size + body_size:
        raise SnapshotError(
            f"{path}: truncated or extended: {len(raw)} bytes instead of "
            f"{HEAD.size + head_size + body_size}; create it again"
        )
    view = raw[HEAD.size :]
    if hashlib.sha256(view).digest() != digest:
        raise SnapshotError(f"{path}: damaged: checksum mismatch; create it again")
    return view[:head_size], view[head_size:]


def _header(compressed: bytes | memoryview, path: Path) -> dict[str, Any]:
    try:
        # A compressed frame may claim any size, so limit the number of bytes to read.
        text = zstandard.ZstdDecompressor().stream_reader(compressed).read(MAX_HEADER + 1)
        if len(text) > MAX_HEADER:
            raise ValueError
        header = read_json(text, MAX_VALUES)
    except (zstandard.ZstdError, ValueError, RecursionError):
        raise SnapshotError(f"{path}: damaged header; create it again") from None
    if not isinstance(header, dict):
        raise SnapshotError(f"{path}: damaged header; create it again")
    return header


def _restore_image(machine: UnicornMachine, same: list[list[int]], path: Path) -> None:
    limit, segments, end = machine.memory // PAGE, machine.image.segments, 0
    for first, count, segment, at in same:
        if not (first >= end and count > 0 and first + count <= limit and at >= 0
                and 0 <= segment < len(segments)
                and at + count * PAGE <= len(segments[segment].data)):
            raise SnapshotError(f"{path}: damaged: it refers to pages outside memory or outside "
                                "the kernel's file; create it again")
        machine.memory_part.prepare(first, count)
        machine.memory_part.view[first * PAGE : (first + count) * PAGE] = (
            segments[segment].data[at : at + count * PAGE])
        end = first + count


def _restore_memory(
    machine: UnicornMachine, pages: list[list[int]], body: memoryview, path: Path
) -> None:
    limit = machine.memory // PAGE
    reader = zstandard.ZstdDecompressor().stream_reader(body)
    view = machine.memory_part.view
    try:
        for first, count in pages:
            if not (first >= 0 and count > 0 and first + count <= limit):
                raise SnapshotError(f"{path}: damaged: it refers to pages outside memory; create "
                                    "it again")
            part = view[first * PAGE : (first + count) * PAGE]
            at = ready = 0
            while at < len(part):
                if at == ready:  # a damaged file may claim more than it contains
                    ready += min(MOST_PREPARED, len(part) - ready)
                    machine.memory_part.prepare(first + at // PAGE, (ready - at) // PAGE)
                got = reader.readinto(part[at:ready])
                if not got:
                    raise SnapshotError(f"{path}: damaged: the memory contents are truncated; "
                                        "create it again")
                at += got
    except zstandard.ZstdError:
        raise SnapshotError(f"{path}: damaged memory contents; create it again") from None
