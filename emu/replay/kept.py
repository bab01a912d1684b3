"""Contents that a recording refers to by their SHA-256 digest instead of containing them."""

from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from emu.host.input_file import Content
from emu.replay.inputs import Position, ReplayError, position_from_json, position_to_json

DIGEST_LENGTH = 64
MAX_PATH = 4096


@dataclass(frozen=True)
class Kept:
    """Reference to the content of a disk or of the first state.

    :param what: kind of the part that the content replaces.
    :param digest: SHA-256 of the content in hexadecimal.
    :param size: size of the content in bytes.
    :param path: file that had the content when the recording was made; an untrusted hint.
    :param position: the position of a state; None for a disk.
    """

    what: str
    digest: str
    size: int
    path: str = ""
    position: Position | None = None


class KeptStore(Protocol):
    """Where such contents are kept and found."""

    def keep(self, content: bytes) -> str:
        """Store content.

        :return: its digest.
        :raises KinstError: if it cannot be stored.
        """

    def find(self, kept: Kept) -> Content:
        """Return content that has the reference's size and digest.

        :raises ReplayError: if it is not found.
        """


class NoStore:
    """A store that finds nothing."""

    def keep(self, content: bytes) -> NoReturn:
        """Refuse to store content."""
        raise ReplayError("a recording that refers to contents needs a store for them")

    def find(self, kept: Kept) -> NoReturn:
        """Find nothing."""
        raise ReplayError(f"the recording refers to content with the SHA-256 digest {kept.digest}; "
                          "open it with a store")


def kept_to_json(kept: Kept) -> dict[str, Any]:
    """Convert a reference to JSON."""
    return {"what": kept.what, "digest": kept.digest, "size": kept.size, "path": kept.path,
            **({} if kept.position is None else {"position": position_to_json(kept.position)})}


def kept_from_json(row: Any) -> Kept:
    """Convert JSON to a reference.

    :raises ValueError: if the JSON is not a reference; also KeyError, TypeError or AttributeError.
    """
    position = row.get("position")
    kept = Kept(row["what"], row["digest"], row["size"], row["path"],
                None if position is None else position_from_json(position))
    if not (isinstance(kept.what, str) and isinstance(kept.digest, str)
            and len(kept.digest) == DIGEST_LENGTH and set(kept.digest) <= set("0123456789abcdef")
            and type(kept.size) is int and kept.size > 0
            and isinstance(kept.path, str) and len(kept.path) <= MAX_PATH
            and "\0" not in kept.path):
        raise ValueError("a reference in a recording is invalid")
    return kept
