"""Find the disks and states that recordings refer to."""

import hashlib
from pathlib import Path

import zstandard

from emu.elf.boot_options import COPIED
from emu.host.atomic_file import replacing
from emu.host.errors import ImageError, KinstError
from emu.host.input_file import Content, HeldFile, pieces, taken
from emu.host.progress import PROGRESS
from emu.replay.inputs import ReplayError
from emu.replay.kept import Kept
from images import catalog
from images.cache import cached_file

MAX_STATE = 1 << 30  # maximum size of a state in bytes
LEVEL = 1


class KeptContents:
    """Store of contents: states in the cache, disks where they are.

    A disk is looked for at the recorded path, next to the recording, and among the base systems
    that were fetched.

    :param recording: path of the recording.
    """

    def __init__(self, recording: Path) -> None:
        self._recording = recording

    def keep(self, content: bytes) -> str:
        """Store content in the cache.

        :return: its digest.
        :raises KinstError: it cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        path = _state_path(digest)
        kept = Kept("", digest, len(content))
        if not path.is_file() or _unpacked(path, kept) is None:
            try:
                with replacing(path) as file:
                    file.write(zstandard.ZstdCompressor(level=LEVEL).compress(content))
            except OSError as error:
                raise KinstError(f"{path}: cannot be written: {error.strerror}; --self-contained "
                                 "puts the state into the recording") from None
        return digest

    def find(self, kept: Kept) -> Content:
        """Return the content that a recording refers to.

        :raises ReplayError: it is not found.
        """
        path = _state_path(kept.digest)
        if path.is_file():
            content = _unpacked(path, kept)
            if content is not None:
                return content
        for path in self._places(kept):
            if found := _matching(path, kept):
                return found
        which = f"of {kept.size} bytes with the SHA-256 digest {kept.digest}"
        if kept.position is not None:
            raise ReplayError(f"{self._recording}: starts from a state {which}, which was removed "
                              "from the cache; record it again, with --self-contained")
        raise ReplayError(f"{self._recording}: refers to a disk {which}; it was {kept.path!r}, and "
                          "is now neither there nor next to the recording nor a fetched base "
                          "system; put it back, or record again with --self-contained")

    def _places(self, kept: Kept) -> list[Path]:
        if not kept.path:
            return []
        hint = Path(kept.path)
        known = [image.path.with_name(catalog.ROOT_FILE) for image in catalog.known()
                 if image.path is not None]
        beside = [self._recording.with_name(hint.name)] if hint.name else []
        return list(dict.fromkeys([hint, *beside, *known]))


def _state_path(digest: str) -> Path:
    return cached_file("states", f"{digest}.state")


def _unpacked(path: Path, kept: Kept) -> memoryview | None:
    """Return a stored state, or None if the file is damaged."""
    if kept.size > MAX_STATE:
        return None
    try:
        packed = taken(path, MAX_STATE).content
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            content = reader.read(kept.size + 1)
    except (ImageError, zstandard.ZstdError):
        return None
    matches = len(content) == kept.size and hashlib.sha256(content).hexdigest() == kept.digest
    return memoryview(content) if matches else None


def _matching(path: Path, kept: Kept) -> Content | None:
    """Return the content of a file if it has the right size and digest."""
    try:
        if not path.is_file() or path.stat().st_size != kept.size:
            return None
        held: Content = HeldFile(path, kept.size)
        if kept.size <= COPIED:
            held = taken(path, kept.size).content
        digest = hashlib.sha256()
        with PROGRESS.working(f"reading {path}"):
            for piece in pieces(held):
                digest.update(piece)
    except (OSError, ImageError):
        return None
    return held if digest.hexdigest() == kept.digest else None
