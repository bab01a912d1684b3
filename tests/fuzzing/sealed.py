"""Random changes to files with checksums, with the checksums updated to match.

They reach the code that trusts a correct checksum. In a recording or a trace, a part is changed,
deleted, duplicated or moved. In a snapshot it is the header or the memory, in a store of results a
row or a table.
"""

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard

from emu.replay.parts import HEAD, PartReader, PartWriter
from emu.unicorn import snapshot
from kinst.verify.sweep.store import APPLICATION, FORMAT
from tests.fuzzing.changes import bytes_changed, text_changed, value_changed

LARGE = 64 << 20  # number of zero bytes that may replace the rest of a part
SQL_VALUES = (None, 0, -1, 1 << 62, 0.5, "", "x", "\x1b[2J", "é" * 500, b"", b"\xff" * 16, "[]",
              '{"state": 1}', "[" * 1000)


def _json_or_bytes(rng: Any, content: bytes) -> bytes:
    """Change the JSON of a part at random, or its bytes if the part is not JSON."""
    if rng.random() < 0.02:
        return content[:64] + bytes(LARGE)
    start = 4 if content[4:5] in (b"{", b"[") else 0  # in a checkpoint, the JSON follows its length
    end = start + int.from_bytes(content[:4], "little") if start else len(content)
    try:
        value = json.loads(content[start:end])
    except ValueError:
        return bytes_changed(rng, content, [range(64), range(len(content))])
    if rng.random() < 0.15:
        text = text_changed(rng, content[start:end], [])
    else:
        text = json.dumps(value_changed(rng, value)).encode()
    size = len(text).to_bytes(4, "little") if start and rng.random() < 0.9 else content[:start]
    return size + text + content[end:]


def parts_changed(rng: Any, content: bytes, _ranges: Sequence[range]) -> bytes:
    """Change parts of a recording or trace file at random and update their checksums."""
    if rng.random() < 0.1:
        return bytes_changed(rng, content, [range(HEAD.size + 24), range(len(content))])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parts"
        path.write_bytes(content)
        reader = PartReader(path)
        parts = [(part[0], reader.content(part)) for part in reader.parts]
        for _ in range(rng.choice((1, 1, 2))):
            # Select each kind of part equally often.
            kind = rng.choice(sorted({kind for kind, _content in parts}))
            at = rng.choice([n for n, part in enumerate(parts) if part[0] == kind])
            match rng.randrange(10):
                case 0:
                    del parts[at]
                case 1:
                    parts[at:at] = [parts[at]] * rng.choice((1, 2, 50))
                case 2:
                    parts.insert(rng.randrange(len(parts)), parts.pop(at))
                case 3:
                    kind = rng.choice(parts)[0] if rng.random() < 0.7 else rng.randbytes(4)
                    parts[at] = kind, parts[at][1]
                case _:
                    parts[at] = kind, _json_or_bytes(rng, parts[at][1])
            if not parts:
                break
        parts = parts or [(b"\0\0\0\0", b"")]
        writer = PartWriter(path, parts[:1])
        for part in parts[1:]:
            writer.write(*part)
        writer.close()
        return path.read_bytes()


def snapshot_changed(rng: Any, content: bytes, _ranges: Sequence[range]) -> bytes:
    """Change a snapshot's header or memory at random and update the checksum."""
    _magic, version, head_size, _body_size, _digest = snapshot.HEAD.unpack_from(content)
    start = snapshot.HEAD.size
    head, body = content[start : start + head_size], content[start + head_size :]
    kind = rng.randrange(10)
    if kind == 0:
        return bytes_changed(rng, content, [range(start)])
    if kind == 1:
        body = bytes_changed(rng, body, [range(64), range(len(body))])
    elif kind == 2:
        head = bytes_changed(rng, head, [range(64), range(len(head))])
    else:
        value = json.loads(zstandard.ZstdDecompressor().stream_reader(head).read())
        key = rng.choice(sorted(value))
        value[key] = value_changed(rng, {"": value[key]}).get("")
        head = zstandard.ZstdCompressor().compress(json.dumps(value).encode())
    return snapshot.HEAD.pack(snapshot.MAGIC, version, len(head), len(body),
                              hashlib.sha256(head + body).digest()) + head + body


def _sql(rng: Any, db: sqlite3.Connection) -> None:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    table = rng.choice(tables)
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    column = rng.choice(columns)
    match rng.randrange(8):
        case 0:
            db.execute(f"DELETE FROM {table}")
        case 1:
            db.execute(f"DROP TABLE {table}")
        case 2:
            db.execute(f"CREATE VIEW more AS SELECT * FROM {table}")
        case 3:
            db.execute(f"PRAGMA user_version = {rng.choice((FORMAT, FORMAT + 1, -1))}")
            db.execute(f"PRAGMA application_id = {rng.choice((APPLICATION, 0))}")
        case 4:
            kept = [name for name in columns if name != column]
            db.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO {kept[0]}_2")
        case _:
            db.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (rng.choice(SQL_VALUES),))


def store_changed(rng: Any, content: bytes, _ranges: Sequence[range]) -> bytes:
    """Change a result store with random SQL statements, or change some of its bytes."""
    if rng.random() < 0.3:
        return bytes_changed(rng, content, [range(100), range(len(content))])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        path.write_bytes(content)
        db = sqlite3.connect(path)
        for _ in range(rng.choice((1, 2, 3))):
            try:
                with db:
                    _sql(rng, db)
            except sqlite3.Error:
                continue  # the value violates a constraint, or the table or column was dropped
        db.close()
        return path.read_bytes()
