"""Fuzzer of machine states in files: checkpoints of recordings, and snapshots.

A state is JSON. A value anywhere in it is replaced by a value of another type or size, or a key is
deleted or added. The checksums are correct, so they do not reveal the change. Left out is the
compressed memory, which ``tests/emu/replay`` and ``tests/emu/unicorn/test_state_files.py`` damage.
"""

import hashlib
import json
import tempfile
from pathlib import Path

import zstandard

from emu.host.errors import KinstError
from emu.machine.machine import Until
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from images import boots, catalog
from tests.conftest import ARCHES, MEMORY
from tests.emu.replay.test_recording import written
from tests.fuzzing.changes import value_changed


class Ground:
    """An image, a recording's start and a checkpoint's header for each architecture."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory()
        self.states = {}
        for arch in ARCHES:
            image = catalog.find(f"teaching/{arch}")
            machine = boots.booted(image, MEMORY)
            path = Path(self.directory.name) / f"{arch}.rec"
            with Recorder(machine, path, STATE, ""):
                machine.run(Until(instructions=machine.instructions + 3000))
            parts = Recording(path)
            checkpoint = parts.checkpoint(0)
            start = {"kind": STATE, "architecture": arch, "build_id": image.identity,
                     "memory": MEMORY, "workload": "", "digest": None,
                     "position": [parts.start.position.instructions, parts.start.position.time,
                                  parts.start.position.awake]}
            head = {"position": start["position"], "pages": [],
                    "state": snapshot.to_json(checkpoint.state)}
            self.states[arch] = image, start, head


def ground():
    """Record a run on each architecture."""
    return Ground()


def once(rng, ground):
    """Load a changed state and return ``refused`` or ``goes on``.

    A refusal must be a one-line KinstError; otherwise the machine must run from the state.
    """
    image, start, head = ground.states[rng.choice(ARCHES)]
    for _ in range(rng.choice((1, 1, 2))):
        head = value_changed(rng, head)
    head.setdefault("state", {})
    path = Path(ground.directory.name) / "changed"
    try:
        if rng.random() < 0.5:
            text = json.dumps(head).encode()
            written(path, json.dumps(start).encode(),
                    (b"CHCK", len(text).to_bytes(4, "little") + text))
            machine = boots.booted(image, MEMORY)
            Player(Recording(path), machine)
        else:
            machine = boots.booted(image, MEMORY)
            snapshot.save(machine, path)
            _replace(path, head["state"])
            machine = snapshot.restore(path, image)
        machine.console.stream = None
        machine.run(Until(instructions=machine.instructions + 2000, time=machine.now + 3 * 10**7))
        machine.digest()
    except KinstError as error:
        assert "\n" not in str(error) and "\x1b" not in str(error)
        return "refused"
    finally:
        path.unlink(missing_ok=True)
    return "goes on"


def _replace(path, state):
    """Replace the state in a snapshot's header and update the checksum."""
    head, body = snapshot._read(path)
    header = snapshot._header(head, path)
    head = zstandard.ZstdCompressor().compress(json.dumps({**header, "state": state}).encode())
    path.write_bytes(snapshot.HEAD.pack(
        snapshot.MAGIC, snapshot.FORMAT, len(head), len(body),
        hashlib.sha256(head + bytes(body)).digest()) + head + bytes(body))
