"""Tests that decompression bombs are refused within limits of time and memory."""

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import zstandard

from emu.host.bounded_json import read_json
from emu.replay.flow import FLOW, STEPS, TAIL
from emu.replay.flow import HEAD as FLOW_HEAD
from emu.replay.inputs import ReplayError
from emu.replay.parts import FORMAT, HEAD, MAGIC, PART
from emu.replay.recording import CHECKPOINT, DISK, END, INPUTS, MARK, START, Recorder, Recording
from emu.replay.starts import BOOT
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import catalog

MOST_MEMORY = 1 << 20  # maximum peak memory for reading, in KiB
MOST_TIME = 10  # maximum CPU time for reading a file, in seconds
READ = """
import re, sys, time
from pathlib import Path
from emu.host.errors import KinstError
from emu.replay.flow import FlowFile
from emu.replay.recording import Recording
from emu.unicorn import snapshot
from images import catalog
kernel = catalog.find("teaching/amd64")
for kind, name in zip(sys.argv[1::2], sys.argv[2::2]):
    path = Path(name)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory (proc(5))
    began, said = time.process_time(), "taken"
    try:
        if kind == "recording":
            found = Recording(path)
            for number in range(len(found.checkpoints)):
                found.checkpoint(number)
            found.options
        elif kind == "flow":
            for piece in FlowFile(path).pieces():
                pass
        else:
            snapshot.restore(path, kernel)
    except KinstError as error:
        said = str(error)
    peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
    print(time.process_time() - began, peak, said)
"""


def read_in_a_process(*files):
    """Read (kind, path) files in a child process with limits; return one message per file."""
    words = [str(word) for file in files for word in file]
    done = subprocess.run([sys.executable, "-c", READ, *words], capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
    found = []
    for line in done.stdout.splitlines():
        seconds, memory, said = line.split(" ", 2)
        assert float(seconds) < MOST_TIME and int(memory) < MOST_MEMORY, line
        found.append(said)
    return found


def recording(path, *parts):
    """Write a file of (kind, content) parts with correct checksums."""
    out = bytearray(HEAD.pack(MAGIC, FORMAT))
    chain = hashlib.blake2b(bytes(out), digest_size=16).digest()
    packed = {}
    for kind, content in parts:
        frame = packed.get(content)
        if frame is None:
            frame = packed[content] = zstandard.ZstdCompressor(19).compress(content)
        digest = hashlib.blake2b(chain, digest_size=16)
        digest.update(kind + len(frame).to_bytes(4, "little"))
        digest.update(frame)
        chain = digest.digest()
        out += PART.pack(kind, len(frame), chain) + frame
    path.write_bytes(out)
    assert len(out) < 1 << 20
    return path


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Return the content of the first part of a valid recording."""
    path = tmp_path_factory.mktemp("start") / "run.rec"
    machine = UnicornMachine(catalog.find("teaching/amd64"), 64 << 20)
    machine.boot()
    with Recorder(machine, path, BOOT, "boot"):
        pass
    reader = Recording(path)._reader
    return reader.content(reader.parts[0])


def values(mebibytes, one):
    return b"[" + (mebibytes << 20) // len(one) * one + b"0]"


HEX = b"0" * (60 << 20)
PAGES = b'{"position": [5, 5, true], "pages": ' + values(60, b"1,") + b', "state": {}}'
STATES = b'{"position": [5, 5, true], "pages": [], "state": ' + values(60, b"{},") + b"}"


def with_length(head):
    return len(head).to_bytes(4, "little") + head


RECORDINGS: dict[str, list[Any]] = {
    "values": [(START, values(64, b"{},"))],
    "text": [(START, b'{"kind": "' + HEX + b'"}')],
    "inputs": ["start", (INPUTS, values(64, b"[],"))],
    "parts of inputs": ["start", *[(INPUTS, values(30, b"[],"))] * 100],
    "parts of text": ["start", *[(INPUTS, b'[[5, 5, true, "type", "", "' + HEX + b'"]]')] * 50],
    "many inputs": ["start", *[(INPUTS, b"[" + b'[5, 5, true, "type", "", "00"],' * 40_000
                                + b'[5, 5, true, "type", "", ""]]')] * 100],
    "pages": ["start", (CHECKPOINT, with_length(PAGES))],
    "states": ["start", *[(CHECKPOINT, with_length(STATES))] * 100],
    "blanks": ["start", *[(CHECKPOINT, with_length(b" " * (60 << 20)))] * 100],
    "mark": ["start", (MARK, values(64, b"[],"))],
    "end": ["start", (END, values(64, b"[],"))],
    "disk": ["start", (DISK, bytes(64 << 20))],
}
FLOWS: dict[str, list[Any]] = {
    "head": [(FLOW_HEAD, values(64, b"{},"))],
    "steps": ["head", (STEPS, values(60, b"[],"))],
    "pieces": ["head", (FLOW, bytes(64 << 20))],
    "tail": ["head", (TAIL, values(60, b"{},"))],
}
HEADERS = {"values": b'{"x": ' + values(60, b"{},") + b"}", "text": b'{"x": "' + HEX + b'"}',
           "blanks": b" " * (64 << 20), "depth": b"[" * (32 << 20)}


def test_recordings_that_expand_to_huge_contents_are_refused(tmp_path, start):
    paths = [recording(tmp_path / f"{name}.rec", *[
        (START, start) if part == "start" else part for part in parts])
        for name, parts in RECORDINGS.items()]
    for path, said in zip(paths, read_in_a_process(*(("recording", path) for path in paths)),
                          strict=True):
        assert said.startswith(f"{path}: ") and "record it again" in said


def test_instruction_traces_that_expand_to_huge_contents_are_refused(tmp_path):
    image = catalog.find("teaching/amd64")
    head = json.dumps({"architecture": "amd64", "build_id": image.identity, "thread": 0,
                       "begin": [0, 0, True], "stack": [], "steps": True}).encode()
    paths = [recording(tmp_path / f"{name}.flow", *[
        (FLOW_HEAD, head) if part == "head" else part for part in parts])
        for name, parts in FLOWS.items()]
    for path, said in zip(paths, read_in_a_process(*(("flow", path) for path in paths)),
                          strict=True):
        assert said.startswith(f"{path}: ")


def test_snapshots_that_expand_to_huge_contents_are_refused(tmp_path):
    paths = []
    for name, header in HEADERS.items():
        paths.append(tmp_path / f"{name}.kinst")
        head = zstandard.ZstdCompressor(19).compress(header)
        paths[-1].write_bytes(snapshot.HEAD.pack(
            snapshot.MAGIC, snapshot.FORMAT, len(head), 0, hashlib.sha256(head).digest()) + head)
        assert paths[-1].stat().st_size < 1 << 20
    for path, said in zip(paths, read_in_a_process(*(("snapshot", path) for path in paths)),
                          strict=True):
        assert said.startswith(f"{path}: damaged")


def test_huge_sparse_files_and_fifos_are_refused_at_once(tmp_path):
    large, zeros, fifo = tmp_path / "large", tmp_path / "zeros", tmp_path / "fifo"
    for path, size in ((large, 100 << 30), (zeros, 3 << 30)):
        with path.open("wb") as file:
            file.truncate(size)
    os.mkfifo(fifo)
    found = read_in_a_process(*((kind, path) for path in (large, zeros, fifo)
                                for kind in ("recording", "flow", "snapshot")))
    assert all(said.startswith(f"{large}: has 107374182400 bytes; ") for said in found[:3])
    assert all(said.startswith(f"{zeros}: not a ") for said in found[3:6])
    assert found[6:] == [f"{fifo}: is not a regular file"] * 3


def test_a_recording_that_could_not_be_read_back_is_not_written(tmp_path):
    for length, refused in ((60_000, False), (70_000, False), (5 << 20, True)):
        machine = UnicornMachine(catalog.find("teaching/amd64"), 64 << 20)
        machine.boot()
        path = tmp_path / f"{length}.rec"
        word = f'strlen("{"," * length}")'
        if refused:
            with pytest.raises(ReplayError, match="too large: the limit is 4 MiB"):
                Recorder(machine, path, BOOT, word)
            continue
        with Recorder(machine, path, BOOT, word):
            pass
        assert Recording(path).start.workload == word


def test_json_values_are_counted_before_parsing():
    commas = {"a": ",[{" * 50, 'b"\\': 1}
    assert read_json(json.dumps(commas).encode(), 4) == commas
    for value, count in (([], 2), ([1, 2, 3], 4), ({"a": [1, {}]}, 5), ("a", 1)):
        text = json.dumps(value).encode()
        assert read_json(text, count + 1) == value
    for value in ([1] * 100, [[]] * 100, [{}] * 100, {str(n): n for n in range(100)}):
        with pytest.raises(ValueError, match="JSON has more than 100 values"):
            read_json(json.dumps(value).encode(), 100)
