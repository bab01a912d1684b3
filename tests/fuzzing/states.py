"""States from files that somebody has changed: checkpoints of recordings, and snapshots.

A state is JSON: a value anywhere in it is replaced by one of another kind or size, a key is taken
away or added.  The checksums are right: the change is not found by them.  Left out: the compressed
memory, which ``tests/emu/replay`` and ``tests/emu/unicorn/test_state_files.py`` damage.
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
            found = parts.checkpoint(0)
            start = {"kind": STATE, "architecture": arch, "build_id": image.identity,
                     "memory": MEMORY, "workload": "", "digest": None,
                     "position": [parts.start.position.instructions, parts.start.position.time,
                                  parts.start.position.awake]}
            head = {"position": start["position"], "pages": [],
                    "state": snapshot.to_json(found.state)}
            self.states[arch] = image, start, head


def ground():
    return Ground()


def once(rng, ground):
    """One changed state; it is refused in a line, or it is a state that a machine can go on from.

    :return: which.
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
    """A snapshot's header with another state in it; its checksum fits."""
    header, body = snapshot._read(path)
    head = zstandard.ZstdCompressor().compress(json.dumps({**header, "state": state}).encode())
    path.write_bytes(snapshot.HEAD.pack(
        snapshot.MAGIC, snapshot.FORMAT, len(head), len(body),
        hashlib.sha256(head + bytes(body)).digest()) + head + bytes(body))
