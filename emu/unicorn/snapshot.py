"""Snapshot files: one self-describing file that another process can go on from.

Layout: the magic, a u32 format version, a u32 length of the header, a u64 length of the memory
part, the SHA-256 of header and memory part, the header (zstd-compressed JSON), the memory part
(one zstd frame: the pages the header lists, one behind the other).  Little-endian.  Pages as they
are in the kernel's file are not in it: the header says in which segment they are, and where.
"""

import hashlib
import json
import struct
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
from emu.unicorn._engine import EngineError
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import MachineState

MAGIC = b"KINSTSNP"
FORMAT = 5
WITHOUT_IMAGE = 4  # as 5, with all pages in it
HEAD = struct.Struct("<8sIIQ32s")
MAX_FILE = 64 << 30  # bytes
MAX_HEADER = 64 << 20
MAX_VALUES = 1 << 22  # of JSON in a header
MAX_CONSOLE = 16 << 20
LEVEL = -1  # a restored boot is what every command waits for: half the time, a quarter more on disk
ZERO = bytes(PAGE)


# What a state that is none raises where it is taken.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, struct.error,
          EngineError)


def to_json(state: MachineState) -> dict[str, Any]:
    """A state as JSON has it."""
    return {
        "cpu": state.cpu, "devices": state.devices, "timers": state.timers,
        "instructions": state.instructions, "canonical": state.canonical, "skew": state.skew,
        "arrived": state.arrived, "waiting": state.waiting, "stop": state.stop,
        "panic": state.panic, "console": state.console.hex(),
        **({} if state.turns is None else {"turns": state.turns}),
    }


def from_json(state: dict[str, Any]) -> MachineState:
    """A state from JSON.

    :raises: one of DAMAGE, when it is none.
    """
    stop, panic = state["stop"], state["panic"]
    console = bytes.fromhex(state["console"])
    turns, skew = state.get("turns"), state["skew"]
    instructions, canonical = number(state["instructions"]), number(state["canonical"])
    if len(console) > MAX_CONSOLE or canonical > instructions or not (
            turns is None or isinstance(turns, dict)):
        raise ValueError("a state of no kind")
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
    """Write a snapshot; the file appears whole or not at all.

    :raises SnapshotError: when it cannot be written.
    """
    if machine.patches:
        raise SnapshotError(f"{path}: probes are enabled: disable them before a snapshot")
    if len(machine.console.text) > MAX_CONSOLE:
        raise SnapshotError(f"{path}: the guest has written more than {MAX_CONSOLE >> 20} MiB to "
                            "its console: such a state is not kept in a file")
    memory = machine.memory_part
    pages: list[list[int]] = []
    same: list[list[int]] = []
    known = _image_pages(machine.image)
    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    body = []
    for first, count in memory.used():
        for page in range(first, first + count):
            data = memory.page(page)
            if data == ZERO:
                continue
            if data in known:
                segment, at = known[data]
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
        raise SnapshotError(f"{path}: the machine's state, disks included, has more than "
                            f"{MAX_HEADER >> 20} MiB, without its memory: it is not kept in a file")
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
    """Pages of the kernel's file as they lie in memory when it is loaded: (segment, offset)."""
    found: dict[bytes, tuple[int, int]] = {}
    for index, segment in enumerate(image.segments):
        for at in range(-segment.physical % PAGE, len(segment.data) - PAGE + 1, PAGE):
            found.setdefault(bytes(segment.data[at : at + PAGE]), (index, at))
    return found


def restore(path: Path, image: Image) -> UnicornMachine:
    """A machine in the state of the file.

    :raises SnapshotError: when the file is damaged, of another format, or of another image.
    """
    header, body = _read(path)
    try:
        if header["architecture"] != arch_of(image).name or not image.is_known_as(
                str(header["build_id"])):
            raise SnapshotError(
                f"{path}: is of another kernel ({header['architecture']}, "
                f"{str(header['build_id'])[:16]}), not of {image.path}; give its own kernel"
            )
        machine = UnicornMachine(image, memory=int(header["memory"]))
        _restore_image(machine, header.get("image", []), path)
        _restore_memory(machine, header["pages"], body, path)
        machine.restore_state(from_json(header["state"]))
    except DAMAGE as error:
        raise SnapshotError(f"{path}: damaged ({type(error).__name__} in its header)") from None
    return machine


def _read(path: Path) -> tuple[dict[str, Any], memoryview]:
    try:
        raw = taken(path, MAX_FILE, MAGIC).content
    except ImageError as error:
        raise SnapshotError(str(error)) from None
    if len(raw) < HEAD.size or raw[:8] != MAGIC:
        raise SnapshotError(f"{path}: not a snapshot file")
    _magic, version, head_size, body_size, digest = HEAD.unpack_from(raw)
    if version not in (FORMAT, WITHOUT_IMAGE):
        raise SnapshotError(f"{path}: snapshot format {version}, this program reads {FORMAT}")
    if len(raw) != HEAD.size + head_size + body_size:
        raise SnapshotError(
            f"{path}: cut short or extended: {len(raw)} bytes, "
            f"{HEAD.size + head_size + body_size} expected; make it again"
        )
    view = raw[HEAD.size :]
    if hashlib.sha256(view).digest() != digest:
        raise SnapshotError(f"{path}: damaged: its checksum does not fit; make it again")
    try:
        # A frame may claim any size; what is read of it is bounded.
        text = zstandard.ZstdDecompressor().stream_reader(view[:head_size]).read(MAX_HEADER + 1)
        if len(text) > MAX_HEADER:
            raise ValueError
        header = read_json(text, MAX_VALUES)
    except (zstandard.ZstdError, ValueError, RecursionError):
        raise SnapshotError(f"{path}: damaged header; make it again") from None
    if not isinstance(header, dict):
        raise SnapshotError(f"{path}: damaged header; make it again")
    return header, view[head_size:]


def _restore_image(machine: UnicornMachine, same: list[list[int]], path: Path) -> None:
    limit, segments, behind = machine.memory // PAGE, machine.image.segments, 0
    for first, count, segment, at in same:
        if not (first >= behind and count > 0 and first + count <= limit and at >= 0
                and 0 <= segment < len(segments)
                and at + count * PAGE <= len(segments[segment].data)):
            raise SnapshotError(f"{path}: damaged: pages outside memory, or the kernel's file")
        machine.memory_part.view[first * PAGE : (first + count) * PAGE] = (
            segments[segment].data[at : at + count * PAGE])
        behind = first + count


def _restore_memory(
    machine: UnicornMachine, pages: list[list[int]], body: memoryview, path: Path
) -> None:
    limit = machine.memory // PAGE
    reader = zstandard.ZstdDecompressor().stream_reader(body)
    view = machine.memory_part.view
    try:
        for first, count in pages:
            if not (first >= 0 and count > 0 and first + count <= limit):
                raise SnapshotError(f"{path}: damaged: pages outside memory")
            part = view[first * PAGE : (first + count) * PAGE]
            at = 0
            while at < len(part):
                got = reader.readinto(part[at:])
                if not got:
                    raise SnapshotError(f"{path}: damaged: memory ends early; make it again")
                at += got
    except zstandard.ZstdError:
        raise SnapshotError(f"{path}: damaged memory part; make it again") from None
