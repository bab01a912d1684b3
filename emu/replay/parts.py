"""Part-based file format of recordings and traces; a killed writer loses only the last part.

Layout, little-endian: the magic and a u32 format version; then parts, each with a kind (four
letters), a u32 length, a checksum, and a zstd frame of that length.  The checksum (BLAKE2b, 16
bytes) covers the previous checksum and the kind, length and frame of its part, so that parts cannot
be removed or reordered.
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

MAGIC, FORMAT = b"KINSTREC", 3  # 3: PAUSE takes 50 ns
HEAD = struct.Struct("<8sI")
PART = struct.Struct("<4sI16s")
LEVEL = 3
MAX_PART = 1 << 30  # maximum size of an uncompressed part in bytes
MAX_FILE = 16 << 30  # maximum size of a file in bytes
MAX_HEAD = 64 << 20
MAX_ROW = 4 << 20  # maximum size of a small JSON part in bytes
FEW_VALUES = 1 << 16  # maximum number of JSON values in a small JSON part
PIECE = 1 << 20
AGAIN = "record it again"


Part = tuple[bytes, int, int]  # kind, start offset and end offset of the frame


def _checksum(before: bytes, kind: bytes, frame: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(kind + len(frame).to_bytes(4, "little"))
    digest.update(frame)
    return digest.digest()


class PartWriter:
    """Writer that compresses and appends parts to a file in a background thread.

    The file is created with its first parts, and replaces any earlier file of that name.

    :param first: kinds and contents of the parts without which the file would be useless.
    :raises ReplayError: here and in later calls, if the file cannot be written.
    """

    def __init__(self, path: Path, first: Iterable[tuple[bytes, bytes]]) -> None:
        self.path = path
        start = HEAD.pack(MAGIC, FORMAT)
        self._chain = hashlib.blake2b(start, digest_size=16).digest()
        self._file, self._process = -1, os.getpid()
        self.size = 0  # number of bytes written
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
        """Append a part to the file.

        :raises ReplayError: if the file is closed, cannot be written, or was opened by another
            process.
        """
        if self._file < 0:
            raise ReplayError(f"{self.path}: cannot be written: the file is closed")
        if os.getpid() != self._process:
            raise ReplayError(f"{self.path}: cannot be written by this process, which was forked "
                              f"from process {self._process}")
        while self._waiting and self._waiting[0].done():
            self._waiting.pop(0).result()
        self._raise()
        self._waiting.append(self._worker.submit(self._add, kind, content))

    def _add(self, kind: bytes, content: bytes) -> None:
        if self._error is not None:
            return  # after a missing part, no other part can be read
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
        """Wait until all parts are written, and close the file."""
        try:
            self.flush()
        finally:
            self._worker.shutdown(cancel_futures=True)
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class PartReader:
    """Reader of a file's parts that stops at the end of the file or at a damaged part.

    :ivar problem: why reading stopped before the end of the file; empty if it did not.
    :raises ReplayError: if the file has another format or version.
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
            raise ReplayError(f"{path}: recording format {version} is not supported; this program "
                              f"reads format {FORMAT}; {AGAIN}")
        self.parts = list(self._parts())

    def _parts(self) -> Iterator[Part]:
        data = self._data
        chain = hashlib.blake2b(data[: HEAD.size], digest_size=16).digest()
        at = HEAD.size
        while at < len(data):
            if at + PART.size > len(data):
                self.problem = "the file is truncated"
                return
            kind, length, checksum = PART.unpack_from(data, at)
            begin, end = at + PART.size, at + PART.size + length
            if end > len(data):
                self.problem = "the file is truncated"
                return
            chain = _checksum(chain, kind, data[begin:end])
            if chain != checksum:
                self.problem = f"the file is damaged at byte {at}"
                return
            yield kind, begin, end
            at = end

    def content(self, part: Part, most: int | None = None) -> bytes:
        """Return the uncompressed content of a part.

        :param most: maximum number of bytes; None: 1 GiB.
        :raises ReplayError: if the part is damaged or larger.
        """
        most = MAX_PART if most is None else most
        content = self._read(part, most + 1)
        if len(content) > most:
            raise ReplayError(f"{self.path}: damaged at byte {part[1]}; {AGAIN}")
        return content

    def json(self, part: Part, most: int = MAX_ROW, values: int = FEW_VALUES) -> Any:
        """Return the value of a JSON part.

        :param most: maximum number of bytes.
        :param values: maximum number of JSON values.
        :raises ReplayError: if the part is damaged or larger.
        :raises ValueError: if the part has more values or is not JSON.
        :raises RecursionError: if the values are nested too deeply.
        """
        return read_json(self.content(part, most), values)

    def beginning(self, part: Part, size: int) -> bytes:
        """Return the first bytes of a part's content.

        :raises ReplayError: if the part is damaged.
        """
        return self._read(part, size)

    def _read(self, part: Part, wanted: int) -> bytes:
        """Decompress up to ``wanted`` bytes of a part, regardless of the size in its header."""
        _kind, begin, end = part
        content = bytearray()
        try:
            with zstandard.ZstdDecompressor().stream_reader(self._data[begin:end]) as reader:
                while len(content) < wanted and (
                        piece := reader.read(min(PIECE, wanted - len(content)))):
                    content += piece
        except zstandard.ZstdError:
            raise ReplayError(f"{self.path}: damaged at byte {begin}; {AGAIN}") from None
        return bytes(content)
