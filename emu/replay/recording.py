"""Recordings, which contain the start of a run, its inputs, and states saved during the run.

The parts of the file (``emu/replay/parts.py``): START, once; DISK, one for each disk, the memory
disk first, and one for each shared file; KEPT, a reference in place of a DISK or of the first
CHECKPOINT; INPUTS, given before the machine runs on; MARK, a position that the run has reached;
CHECKPOINT, the state there and the pages that differ from the start; END, the final state.
"""

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emu.arch.architectures import ARCHITECTURES
from emu.elf.boot_options import (
    ASSIGNMENT,
    COPIED,
    MAX_DATE,
    MAX_DISKS,
    MAX_ENVIRONMENT,
    MAX_NAME,
    MAX_SEED,
    MAX_SHARED,
    MAX_TURN,
    NETWORKS,
    NOTHING,
    TURN,
    BootOptions,
    DiskImage,
    Network,
    SharedFile,
    is_disk,
)
from emu.host.bounded_json import fits, read_json
from emu.host.input_file import Content
from emu.host.printable import plain, printable
from emu.machine.machine import MAX_CONSOLE, Stop, StopReason, Until
from emu.replay.inputs import (
    MAX_INPUT,
    STUCK,
    Input,
    Position,
    ReplayError,
    from_json,
    position_from_json,
    position_of,
    position_to_json,
    to_json,
)
from emu.replay.kept import Kept, KeptStore, NoStore, kept_from_json, kept_to_json
from emu.replay.parts import (
    AGAIN,
    FEW_VALUES,
    MAX_HEAD,
    MAX_PART,
    MAX_ROW,
    Part,
    PartReader,
    PartWriter,
)
from emu.replay.starts import BOOTED, STARTS, STATE
from emu.unicorn import snapshot
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.schedule import MOST_CPUS
from emu.unicorn.state import MachineState
from emu.unicorn.wired_machine import Go

START, DISK, INPUTS, MARK, CHECKPOINT, END = b"STRT", b"DISK", b"INPT", b"MARK", b"CHCK", b"DONE"
KEPT = b"KEPT"
MARK_EVERY = 25_000_000  # number of instructions between two position marks
# Write a checkpoint when the run has grown by 1/GROWTH since the previous checkpoint, and by at
# least FIRST instructions.  Seeking then replays only a fraction of the run, and the file grows
# more and more slowly.
GROWTH, FIRST = 4, 40_000_000
ZERO = bytes(PAGE)
BUILD_ID = re.compile(r"[0-9A-Za-z-]{0,160}")
MODULE = re.compile(r"[0-9A-Za-z_.-]{1,64}")  # pattern of a module's file name
ONE_CPU = ((0, 0),)  # the schedule of a machine with one CPU
FLAGS = re.compile("[A-Za-z]{0,52}")
MAX_DISKS_SIZE = 1 << 30  # maximum total size of all disks in bytes
MAX_KERNEL = 4096  # maximum length of the kernel's path in characters (Linux's own limit)
MAX_PAGES = (MAX_PART - MAX_HEAD - 4) // PAGE
MAX_INPUTS = 1 << 18
ROW = 256  # maximum size in bytes of an input's JSON without the input's value
INPUT_VALUES = 10  # maximum number of JSON values and brackets in the JSON text of one input
MAX_INPUT_BYTES = 256 << 20  # maximum total size of the JSON of all inputs in bytes
# Pattern of a checkpoint's start: length of the JSON header, and the header up to the position.
POSITION = re.compile(rb'.{4}\{"position": (\[[0-9a-z, ]{1,96}\]).*', re.DOTALL)
MAX_POSITION = 128  # number of bytes to read for a match of POSITION


@dataclass(frozen=True)
class Start:
    """Start of a recorded run: the machine, the kernel and the initial position.

    Large because each value in the header of a file is a field.

    :param kind: one of STARTS.
    :param build_id: build ID of the kernel image.
    :param memory: bytes of RAM.
    :param workload: description of what was recorded.
    :param digest: digest of the initial state (``UnicornMachine.digest``); None unless the run
        starts from a boot to the prompt.
    :param modules: names and build IDs of the kernel modules, in load order.
    :param schedule: (instruction count, CPU whose turn begins there).
    :param environment: assignments in the kernel environment.
    :param flags: boot flags.
    :param memory_disk: whether the machine has a memory disk; the file contains its content.
    :param disks: number of other disks; the file contains their content.
    :param cpus: number of CPUs.
    :param turn: instructions in a CPU's turn.
    :param date: time of day at the start of the boot in seconds since 1970, or None.
    :param files: whether there is a disk with files; the file contains its content.
    :param network: kind of the network that the machine is connected to, or None.
    :param shared: names of the files that the network's peer offers; the file contains them.
    :param entropy: seed of the entropy device, or None.
    :param serial: whether there is a second serial port.
    :param kernel: path of the kernel file; empty: unknown.  An untrusted hint: a file there is used
        only if it has this build ID.
    """

    kind: str
    architecture: str
    build_id: str
    memory: int
    workload: str
    position: Position
    digest: str | None = None
    modules: tuple[tuple[str, str], ...] = ()
    kernel: str = ""
    schedule: tuple[tuple[int, int], ...] = ONE_CPU
    environment: tuple[str, ...] = ()
    flags: str = ""
    memory_disk: bool = False
    disks: int = 0
    cpus: int = 1
    turn: int = TURN
    date: int | None = None
    files: bool = False
    network: str | None = None
    shared: tuple[str, ...] = ()
    entropy: str | None = None
    serial: bool = False


@dataclass(frozen=True)
class End:
    """End of a recorded run.

    :param stop: why the run ended, as text.
    :param digest: digest of the machine's state (``digest_of``); None if probes were enabled.
    """

    position: Position
    stop: str
    digest: str | None


@dataclass(frozen=True)
class Checkpoint:
    """Machine state saved during a recorded run.

    :param pages: pages that differ from the start, by page number.
    """

    position: Position
    state: MachineState
    pages: dict[int, bytes]


def pages_of(machine: UnicornMachine) -> dict[int, bytes]:
    """Return all memory pages that contain a nonzero byte, keyed by page number."""
    memory, pages = machine.memory_part, {}
    for first, count in memory.used():
        for page in range(first, first + count):
            data = memory.page(page)
            if data != ZERO:
                pages[page] = data
    return pages


def changed_pages(machine: UnicornMachine, first: Mapping[int, bytes]) -> list[int]:
    """Return the sorted numbers of the memory pages that have changed.

    :param first: the original pages, without those that contained only zeros.
    """
    memory, changed, gone = machine.memory_part, [], set(first)
    for begin, count in memory.used():
        for page in range(begin, begin + count):
            gone.discard(page)
            if memory.page(page) != first.get(page, ZERO):
                changed.append(page)
    return sorted([*changed, *gone])  # a page that is no longer used contains zeros again


def digest_of(machine: UnicornMachine, first: Mapping[int, bytes]) -> str:
    """Return a BLAKE2b digest of a machine's state and of the pages that differ from ``first``."""
    state = json.dumps(snapshot.to_json(machine.state()), sort_keys=True)
    digest = hashlib.blake2b(state.encode(), digest_size=32)
    for page in changed_pages(machine, first):
        digest.update(page.to_bytes(8, "little"))
        digest.update(machine.memory_part.page(page))
    return digest.hexdigest()


class Recorder:
    """Writer that saves the inputs of a running machine to a recording file.

    As a context manager it ends the recording on exit, even after an exception.

    :param kind: what the machine's state was made from, one of STARTS.
    :param workload: description of what is recorded.
    :param store: where contents are kept that the recording refers to: disks of more than 64 MiB,
        and the first state of a STATE; None: the recording contains them.
    :raises ReplayError: here and in later calls, if the file cannot be written, or the machine or
        an input cannot be recorded.
    """

    def __init__(self, machine: UnicornMachine, path: Path, kind: str, workload: str,
                 store: KeptStore | None = None) -> None:
        if machine.patches or machine.runner is not None:
            raise ReplayError(f"{path}: cannot start a recording: the machine has probes or is "
                              "already being recorded")
        for module in machine.image.modules:
            if not MODULE.fullmatch(module.name):
                raise ReplayError(f"{path}: a recording cannot store the module name "
                                  f"{module.name!r}; rename the module's file")
        self.machine, options = machine, machine.image.options
        shared = () if options.network is None else options.network.files
        self.start = Start(
            kind, machine.arch.name, machine.image.identity, machine.memory, workload,
            position_of(machine), machine.digest() if kind == BOOTED else None,
            tuple((module.name, module.file.build_id) for module in machine.image.modules),
            kernel=os.path.abspath(machine.image.path),
            environment=options.environment, flags=options.flags,
            memory_disk=options.memory_disk is not None, disks=len(options.disks),
            cpus=options.cpus, turn=options.turn, date=options.date,
            files=options.files is not None,
            network=None if options.network is None else options.network.kind,
            shared=tuple(file.name for file in shared), entropy=options.entropy,
            serial=options.serial)
        self._first: dict[int, bytes] = {}
        every = [*options.every_disk, *([] if options.files is None else [options.files])]
        referred = [disk for disk in options.disks
                    if store is not None and len(disk.content) > COPIED]
        packed = [*(disk.content for disk in every if disk not in referred),
                  *(file.content for file in shared)]
        if sum(map(len, packed)) > MAX_DISKS_SIZE:
            raise ReplayError(f"{path}: the disks are too large for a recording: the limit is "
                              f"{MAX_DISKS_SIZE >> 20} MiB in total")
        start = _start_to_json(self.start)
        if not fits(start, FEW_VALUES, MAX_ROW):
            raise ReplayError(f"{path}: the description of the run is too large: the limit is "
                              f"{MAX_ROW >> 20} MiB and {FEW_VALUES} JSON values")
        state = [self._first_state(path, store)] if kind == STATE else []
        disks = (_referred(disk) if disk in referred else (DISK, bytes(disk.content[:]))
                 for disk in every)
        files = ((DISK, bytes(file.content[:])) for file in shared)
        self._writer = PartWriter(path, itertools.chain([(START, start)], disks, files, state))
        self._first = pages_of(machine)
        self._inputs: list[Input] = []
        self._input_count = self._input_bytes = 0
        self._process = os.getpid()
        self._whole = True  # False during a run, and after an exception has ended a run
        self._stop: Stop | None = None
        self._mark_at = machine.instructions + MARK_EVERY
        self._checkpoint_at = machine.instructions + FIRST
        machine.runner = self

    @property
    def size(self) -> int:
        """Number of bytes written to the file."""
        return self._writer.size

    def entered(self, kind: str, name: str, value: bytes) -> None:
        """Record an input that the machine receives now.

        :raises ReplayError: if the input or the recording becomes too large.
        """
        if len(value) > MAX_INPUT:
            raise ReplayError(f"{self._writer.path}: an input has {len(value)} bytes; the limit is "
                              f"{MAX_INPUT}")
        self._input_count, self._input_bytes = (
            self._input_count + 1, self._input_bytes + 2 * len(value) + ROW)
        if self._input_count > MAX_INPUTS or self._input_bytes > MAX_INPUT_BYTES:
            raise ReplayError(f"{self._writer.path}: a recording is limited to {MAX_INPUTS} inputs "
                              f"with a total of {MAX_INPUT_BYTES >> 20} MiB")
        here = position_of(self.machine)
        if self._inputs and self._inputs[-1].position != here:
            self._flush()  # all inputs in a part have the same position
        self._inputs.append(Input(here, kind, name, value))

    def run(self, until: Until, go: Go) -> Stop:
        """Run the machine by calling ``go``, and write positions and checkpoints to the file."""
        if len(self.machine.console.text) >= MAX_CONSOLE:
            raise ReplayError(f"{self._writer.path}: cannot record further: the guest has printed "
                              f"{MAX_CONSOLE >> 20} MiB to its console")
        self._flush()
        self._whole = False
        while True:
            end = until.instructions
            if end is None or self._mark_at < end:
                stop = go(replace(until, instructions=self._mark_at))
                if (stop.reason is StopReason.INSTRUCTIONS
                        and self.machine.instructions >= self._mark_at):
                    self._mark()
                    continue
            else:
                stop = go(until)
            if stop.reason is StopReason.UNHANDLED:
                self.entered(STUCK, "", b"")
            self._stop, self._whole = stop, True
            self._writer.flush()
            return stop

    def _flush(self) -> None:
        if self._inputs:
            rows, self._inputs = [to_json(one) for one in self._inputs], []
            self._writer.write(INPUTS, json.dumps(rows).encode())

    def _mark(self) -> None:
        self._flush()
        here = position_of(self.machine)
        self._mark_at = here.instructions + MARK_EVERY
        if here.instructions >= self._checkpoint_at and not self.machine.patches:
            if state := self._present(self._writer.path):
                self._writer.write(CHECKPOINT, state)
            self._checkpoint_at = here.instructions + max(FIRST, here.instructions // GROWTH)
        else:
            self._writer.write(MARK, json.dumps(position_to_json(here)).encode())

    def _present(self, path: Path, said: bool = False) -> bytes:
        """Return a checkpoint of the current state.

        :param said: for a state that is too large, raise an error if true, else return nothing.
        """
        machine = self.machine
        changed = changed_pages(machine, self._first)
        if len(changed) > MAX_PAGES or len(machine.console.text) > snapshot.MAX_CONSOLE:
            if said and len(changed) > MAX_PAGES:
                raise ReplayError(f"{path}: the machine's state is too large: the limit is "
                                  f"{MAX_PAGES * PAGE >> 20} MiB")
            if said:
                raise ReplayError(f"{path}: the state cannot be saved: the guest has printed more "
                                  f"than {snapshot.MAX_CONSOLE >> 20} MiB to its console")
            return b""
        head = json.dumps({"position": position_to_json(position_of(machine)), "pages": changed,
                           "state": snapshot.to_json(machine.state())}).encode()
        if not fits(head, machine.memory // PAGE + snapshot.MAX_VALUES, MAX_HEAD):
            if said:
                raise ReplayError(f"{path}: the machine's state, disks included, is too large: the "
                                  f"limit is {MAX_HEAD >> 20} MiB")
            return b""
        return b"".join(
            [len(head).to_bytes(4, "little"), head, *map(machine.memory_part.page, changed)])

    def _first_state(self, path: Path, store: KeptStore | None) -> tuple[bytes, bytes]:
        """Return the part for the first state, or for a reference to it."""
        content = self._present(path, said=True)
        if store is None:
            return CHECKPOINT, content
        kept = Kept(CHECKPOINT.decode(), store.keep(content), len(content),
                    position=position_of(self.machine))
        return KEPT, json.dumps(kept_to_json(kept)).encode()

    def end(self) -> End | None:
        """End the recording at the machine's current position.

        :return: the end of the recording.  None if it had ended already; if an exception has left
            the machine in the middle of a run, so that the recording is valid up to its last mark;
            or in a forked process, since the original process continues the recording.
        """
        if self.machine.runner is not self or os.getpid() != self._process:
            return None
        machine = self.machine
        machine.runner = None
        if not self._whole:
            self._writer.close()
            return None
        self._flush()
        end = End(position_of(machine), "" if self._stop is None else str(self._stop),
                    None if machine.patches else digest_of(machine, self._first))
        self._writer.write(END, json.dumps(
            {"position": position_to_json(end.position), "stop": end.stop,
             "digest": end.digest}).encode())
        self._writer.close()
        return end

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _is_text(value: object, most: int) -> bool:
    """Return whether a value is a printable text that is neither empty nor too long."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()


def _referred(disk: DiskImage) -> tuple[bytes, bytes]:
    """Return the part for a reference to a disk."""
    kept = Kept(DISK.decode(), disk.digest, len(disk.content), os.path.abspath(disk.path))
    return KEPT, json.dumps(kept_to_json(kept)).encode()


def _start_to_json(start: Start) -> bytes:
    return json.dumps({
        "kind": start.kind, "architecture": start.architecture, "build_id": start.build_id,
        "memory": start.memory, "workload": start.workload, "digest": start.digest,
        "position": position_to_json(start.position),
        **({"modules": start.modules} if start.modules else {}),
        "schedule": start.schedule,
        **({"environment": start.environment, "flags": start.flags,
            "memory_disk": start.memory_disk, "disks": start.disks}
           if start.environment or start.flags or start.memory_disk or start.disks else {}),
        **({"cpus": start.cpus, "turn": start.turn} if start.cpus > 1 else {}),
        **({"date": start.date} if start.date is not None else {}),
        **({"files": start.files} if start.files else {}),
        **({"network": start.network, "shared": start.shared} if start.network else {}),
        **({"entropy": start.entropy} if start.entropy is not None else {}),
        **({"serial": start.serial} if start.serial else {}),
        **({"kernel": start.kernel} if 0 < len(start.kernel) <= MAX_KERNEL else {})}).encode()


def _start_from_json(row: Any) -> Start:
    start = Start(row["kind"], row["architecture"], row["build_id"], row["memory"],
                  plain(str(row["workload"])), position_from_json(row["position"]), row["digest"],
                  tuple((name, build_id) for name, build_id in row.get("modules", ())),
                  row.get("kernel", ""),
                  tuple((at, cpu) for at, cpu in row.get("schedule", ONE_CPU)),
                  tuple(row.get("environment", ())), row.get("flags", ""),
                  row.get("memory_disk", False), row.get("disks", 0),
                  row.get("cpus", 1), row.get("turn", TURN), row.get("date"),
                  row.get("files", False),
                  row.get("network"), tuple(row.get("shared", ())), row.get("entropy"),
                  row.get("serial", False))
    if start.kind not in STARTS or start.architecture not in ARCHITECTURES or not (
            isinstance(start.memory, int) and BUILD_ID.fullmatch(start.build_id)
            and isinstance(row["workload"], str) and isinstance(start.digest, str | None)
            and all(type(at) is type(cpu) is int for at, cpu in start.schedule)
            and len(start.environment) <= MAX_ENVIRONMENT
            and all(ASSIGNMENT.fullmatch(one) for one in start.environment)
            and FLAGS.fullmatch(start.flags) and type(start.memory_disk) is bool
            and type(start.disks) is int and 0 <= start.disks <= MAX_DISKS
            and type(start.cpus) is int and 1 <= start.cpus <= MOST_CPUS
            and type(start.turn) is int and 0 < start.turn < MAX_TURN
            and (start.date is None
                 or (type(start.date) is int and 0 <= start.date <= MAX_DATE))
            and type(start.files) is bool and start.network in (None, *NETWORKS)
            and len(start.shared) <= MAX_SHARED
            and all(_is_text(name, MAX_NAME) for name in start.shared)
            and (start.entropy is None or _is_text(start.entropy, MAX_SEED))
            and type(start.serial) is bool
            and isinstance(start.kernel, str) and len(start.kernel) <= MAX_KERNEL
            and all(MODULE.fullmatch(name) and BUILD_ID.fullmatch(build_id)
                    for name, build_id in start.modules)):
        raise ValueError("a field in the header of the recording is invalid")
    return start


# Exceptions raised when JSON does not have the expected structure
SHAPE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass
class Recording:
    """Contents of a recording file.

    :param store: where contents are found that the recording refers to.
    :ivar start: the start of the run.
    :ivar inputs: the inputs, in the order they were recorded.
    :ivar ends: indexes at which groups of inputs end; the machine runs on only after a whole group.
    :ivar checkpoints: (position, part of the file, number of inputs given before).
    :ivar end: the end of the run; None if the recorder did not reach it.
    :ivar last: the last known position.
    :ivar problem: why reading stopped before the end of the recording; empty if it did not.
    :raises ReplayError: if the file is not a recording, or a part of it is damaged.
    """

    path: Path
    store: KeptStore = field(default_factory=NoStore)
    start: Start = field(init=False)
    inputs: list[Input] = field(init=False, default_factory=list)
    end: End | None = field(init=False, default=None)
    last: Position = field(init=False)
    checkpoints: list[tuple[Position, Part | Kept, int]] = field(init=False, default_factory=list)
    ends: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._reader = reader = PartReader(self.path)
        self._disks: list[Part | Kept] = []
        self._input_bytes = MAX_INPUT_BYTES  # maximum size in bytes of the remaining INPUTS parts
        self.problem = reader.problem
        if not reader.parts or reader.parts[0][0] != START:
            raise ReplayError(f"{self.path}: the first part of the recording is missing"
                              f"{': ' + self.problem if self.problem else ''}; {AGAIN}")
        try:
            self.start = _start_from_json(reader.json(reader.parts[0]))
            if self.start.schedule != ONE_CPU:
                raise ReplayError(f"{self.path}: this version cannot play a recording with a "
                                  "fixed schedule of CPUs; use the version that made it")
            self.last = self.start.position
            for part in reader.parts[1:]:
                self._take(part)
        except SHAPE as error:
            raise ReplayError(f"{self.path}: damaged ({type(error).__name__}: "
                              f"{printable(error)}); {AGAIN}") from None
        if not self.problem and self.end is None:
            self.problem = "the file is truncated"

    def _take(self, part: Part) -> None:
        kind = part[0]
        if self.end is not None:
            raise ValueError("a recording has a part after its end")
        kept = kept_from_json(self._reader.json(part)) if kind == KEPT else None
        if kind == DISK or (kept is not None and kept.what == DISK.decode()):
            if self.ends or self.checkpoints or len(self._disks) == self._disks_wanted:
                raise ValueError("a recording has an unexpected disk")
            self._disks.append(kept or part)
            return
        if kept is not None:
            if kept.what != CHECKPOINT.decode() or kept.position is None or self.checkpoints:
                raise ValueError("a recording has an unexpected reference")
            self.checkpoints.append((kept.position, kept, len(self.inputs)))
            self._on(kept.position)
            return
        if kind == CHECKPOINT:
            match = POSITION.fullmatch(self._reader.beginning(part, MAX_POSITION))
            if match is None:
                raise ValueError("a checkpoint has no position")
            position = position_from_json(json.loads(match[1]))
            self.checkpoints.append((position, part, len(self.inputs)))
        elif kind == INPUTS:
            content = self._reader.content(part, self._input_bytes)
            self._input_bytes -= len(content)
            for row in read_json(content, MAX_INPUTS * INPUT_VALUES):
                entry = from_json(row)
                if len(self.inputs) == MAX_INPUTS:
                    raise ValueError("a recording has too many inputs")
                self.inputs.append(entry)
                self._on(entry.position)
            self.ends.append(len(self.inputs))
            return
        else:
            row = self._reader.json(part)
            if kind == END:
                position = position_from_json(row["position"])
                self.end = End(position, plain(str(row["stop"])), row["digest"])
            elif kind == MARK:
                position = position_from_json(row)
            else:
                raise ValueError("a recording has a part of an unknown kind")
        self._on(position)

    @property
    def _disks_wanted(self) -> int:
        start = self.start
        return start.memory_disk + start.disks + start.files + len(start.shared)

    @functools.cached_property
    def options(self) -> BootOptions:
        """Boot options of the recorded machine, with its disks.

        :raises ReplayError: if a disk is damaged or missing.
        """
        start = self.start
        if len(self._disks) < self._disks_wanted:
            raise ReplayError(f"{self.path}: truncated before its disks; {AGAIN}")
        contents: list[Content] = []
        remaining = MAX_DISKS_SIZE
        for part in self._disks:
            if isinstance(part, Kept):
                contents.append(self.store.find(part))
                continue
            packed = self._reader.content(part, remaining)
            contents.append(memoryview(packed))
            remaining -= len(packed)
        count = start.memory_disk + start.disks + start.files
        if not all(is_disk(len(content)) for content in contents[:count]):
            raise ReplayError(f"{self.path}: contains a disk of invalid size; {AGAIN}")
        disks = [DiskImage(Path(part.path), content, part.digest) if isinstance(part, Kept)
                 else DiskImage(self.path, content)
                 for content, part in zip(contents, self._disks[:count], strict=False)]
        first = disks.pop(0) if start.memory_disk else None
        late = disks.pop() if start.files else None
        network = None if start.network is None else Network(start.network, tuple(
            SharedFile(name, content)
            for name, content in zip(start.shared, contents[count:], strict=True)))
        options = BootOptions(start.environment, start.flags, first, tuple(disks), start.cpus,
                              start.turn, start.date, late, network, start.entropy, start.serial)
        return NOTHING if options == NOTHING else options

    def _on(self, there: Position) -> None:
        if (there.instructions, there.time) < (self.last.instructions, self.last.time):
            raise ValueError("the positions of a recording are not in ascending order")
        self.last = there

    def checkpoint(self, number: int) -> Checkpoint:
        """Return a checkpoint by its index in ``checkpoints``.

        :raises ReplayError: if the checkpoint is damaged.
        """
        position, part, _given = self.checkpoints[number]
        content = (bytes(self.store.find(part)[:]) if isinstance(part, Kept)
                   else self._reader.content(part))
        size = int.from_bytes(content[:4], "little")
        body = memoryview(content)[4 + size :]
        try:
            if size > MAX_HEAD:
                raise ValueError(f"the checkpoint's header has {size} bytes; the limit is "
                                 f"{MAX_HEAD}")
            head = read_json(content[4 : 4 + size],
                             self.start.memory // PAGE + snapshot.MAX_VALUES)
            state, pages = snapshot.from_json(head["state"]), head["pages"]
            if not all(isinstance(p, int) and 0 <= p < self.start.memory // PAGE for p in pages) \
                    or len(body) != PAGE * len(pages):
                raise ValueError("a checkpoint has invalid pages")
        except snapshot.DAMAGE as error:
            raise ReplayError(f"{self.path}: a checkpoint is damaged ({type(error).__name__}: "
                              f"{printable(error)}); {AGAIN}") from None
        return Checkpoint(position, state, {
            page: bytes(body[PAGE * n : PAGE * (n + 1)]) for n, page in enumerate(pages)})
