"""The file of a recording: parts one behind the other, of which a writer that is killed leaves all
but the last.

Layout: the magic and a u32 format version; then parts, each of a kind (four letters), a u32 length,
a checksum, and a zstd frame of that length.  The checksum (BLAKE2b, 16 bytes) is over the one
before it, kind, length and frame: parts cannot be left out or change places.  Little-endian.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zstandard

from emu.host.atomic_file import replacing
from emu.host.bounded_json import read_json
from emu.host.errors import ImageError
from emu.host.input_file import taken
from emu.replay.inputs import ReplayError

MAGIC, FORMAT = b"KINSTREC", 2
HEAD = struct.Struct("<8sI")
PART = struct.Struct("<4sI16s")
LEVEL = 3
MAX_PART = 1 << 30  # bytes of a part, uncompressed
MAX_FILE = 16 << 30  # bytes
MAX_HEAD = 64 << 20
MAX_ROW = 4 << 20  # bytes of a small part of JSON, and of values in it
FEW_VALUES = 1 << 16
PIECE = 1 << 20
AGAIN = "record it again"


Part = tuple[bytes, int, int]  # its kind, where its frame begins and ends


def _checksum(before: bytes, kind: bytes, frame: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(kind + len(frame).to_bytes(4, "little"))
    digest.update(frame)
    return digest.digest()


class PartWriter:
    """Writes a recording.  The file is there when its first parts are written, in the place of what
    had its name before, and then grows: parts are compressed and written while the machine runs on.

    :param first: the kinds and contents of parts without which the file would be of no use.
    :raises ReplayError: here and later, when it cannot be written.
    """

    def __init__(self, path: Path, first: Iterable[tuple[bytes, bytes]]) -> None:
        self.path = path
        start = HEAD.pack(MAGIC, FORMAT)
        self._chain = hashlib.blake2b(start, digest_size=16).digest()
        self._file, self._process = -1, os.getpid()
        self.size = 0  # bytes written
        self._worker = ThreadPoolExecutor(1, "recording")
        self._waiting: list[Future[None]] = []
        self._error: ReplayError | None = None
        try:
            with replacing(path) as file:
                self.size = file.write(start)
                for kind, content in first:
                    self.size += file.write(self._made(kind, content))
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> ReplayError:
        return ReplayError(f"{self.path}: cannot be written: {error.strerror}")

    def _made(self, kind: bytes, content: bytes) -> bytes:
        frame = zstandard.ZstdCompressor(level=LEVEL).compress(content)
        self._chain = _checksum(self._chain, kind, frame)
        return PART.pack(kind, len(frame), self._chain) + frame

    def write(self, kind: bytes, content: bytes) -> None:
        """Add a part."""
        if self._file < 0:
            raise ReplayError(f"{self.path}: the recording has ended")
        if os.getpid() != self._process:
            raise ReplayError(f"{self.path}: is written by process {self._process}, which has "
                              "forked: it goes on there")
        while self._waiting and self._waiting[0].done():
            self._waiting.pop(0).result()
        self._raise()
        self._waiting.append(self._worker.submit(self._add, kind, content))

    def _add(self, kind: bytes, content: bytes) -> None:
        if self._error is not None:
            return  # what comes behind a part that is not there says nothing
        data = memoryview(self._made(kind, content))
        try:
            while data:
                written = os.write(self._file, data)
                self.size += written
                data = data[written:]
        except OSError as error:
            self._error = self._failed(error)

    def flush(self) -> None:
        """Wait until all parts are written."""
        while self._waiting:
            self._waiting.pop(0).result()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise ReplayError(str(self._error))

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._worker.shutdown(cancel_futures=True)
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class PartReader:
    """The parts of a file, up to where it ends or is damaged.

    :ivar problem: why it ends before its end; empty: it does not.
    :raises ReplayError: when it is no recording, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        try:
            self._data = taken(path, MAX_FILE, MAGIC).content
        except ImageError as error:
            raise ReplayError(str(error)) from None
        if len(self._data) < HEAD.size or self._data[: len(MAGIC)] != MAGIC:
            raise ReplayError(f"{path}: not a recording")
        version = HEAD.unpack_from(self._data)[1]
        if version != FORMAT:
            raise ReplayError(f"{path}: a recording of format {version}, this program reads "
                              f"{FORMAT}; {AGAIN}")
        self.parts = list(self._parts())

    def _parts(self) -> Iterator[Part]:
        data = self._data
        chain = hashlib.blake2b(data[: HEAD.size], digest_size=16).digest()
        at = HEAD.size
        while at < len(data):
            if at + PART.size > len(data):
                self.problem = "it is cut off"
                return
            kind, length, checksum = PART.unpack_from(data, at)
            begin, end = at + PART.size, at + PART.size + length
            if end > len(data):
                self.problem = "it is cut off"
                return
            chain = _checksum(chain, kind, data[begin:end])
            if chain != checksum:
                self.problem = f"it is damaged at byte {at}"
                return
            yield kind, begin, end
            at = end

    def content(self, part: Part, most: int | None = None) -> bytes:
        """:param most: bytes; None: 1 GiB.
        :raises ReplayError: when it is no frame, or of more.
        """
        most = MAX_PART if most is None else most
        found = self._read(part, most + 1)
        if len(found) > most:
            raise ReplayError(f"{self.path}: damaged at byte {part[1]}; {AGAIN}")
        return found

    def json(self, part: Part, most: int = MAX_ROW, values: int = FEW_VALUES) -> Any:
        """What a part of JSON says.

        :param most: bytes.
        :raises ReplayError: as ``content``.
        :raises ValueError: when it has more values, or is no JSON.
        :raises RecursionError: when its values lie too deep in each other.
        """
        return read_json(self.content(part, most), values)

    def beginning(self, part: Part, size: int) -> bytes:
        """The first bytes of a part.

        :raises ReplayError: when it is no frame.
        """
        return self._read(part, size)

    def _read(self, part: Part, wanted: int) -> bytes:
        """The first bytes of a part.  A frame may claim any size; what is read of it is bounded."""
        _kind, begin, end = part
        found = bytearray()
        try:
            with zstandard.ZstdDecompressor().stream_reader(self._data[begin:end]) as reader:
                while len(found) < wanted and (
                        piece := reader.read(min(PIECE, wanted - len(found)))):
                    found += piece
        except zstandard.ZstdError:
            raise ReplayError(f"{self.path}: damaged at byte {begin}; {AGAIN}") from None
        return bytes(found)
