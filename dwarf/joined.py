"""Concatenation of debug data from type units and dwz's supplementary files."""

from collections.abc import Callable
from dataclasses import dataclass

from dwarf._join import Join, JoinError, UnreadError
from emu.host.errors import KinstError

# Concatenated sections; offsets into a section grow by the lengths of the preceding parts.
SHARED = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str", ".debug_line")
TYPES = ".debug_types"
ALTERNATE, SUPPLEMENT = ".gnu_debugaltlink", ".debug_sup"
LIMIT = 1 << 30  # maximum total size of all sections in bytes


class NotJoined(KinstError):
    """Error raised if debug data in several places cannot be joined."""


@dataclass(frozen=True)
class SupplementLink:
    """Link from a file to its supplementary file.

    :param name: path, absolute or relative to the directory of the linking file.
    :param identity: build ID of the supplementary file, or the checksum in its .debug_sup.
    """

    name: str
    identity: bytes


def link(sections: Callable[[str], bytes]) -> SupplementLink | None:
    """Return the link to the supplementary file that a file needs, or None.

    :param sections: callback that returns a section's contents, empty if it is missing.
    """
    if data := sections(ALTERNATE):
        name, _, identity = data.partition(b"\0")
    elif (data := sections(SUPPLEMENT)) and len(data) > 3 and data[2] == 0:
        name, _, identity = data[3:].partition(b"\0")
        identity = _checksum(identity)
    else:
        return None
    return SupplementLink(name.decode("utf-8", "replace"), identity)


def own_identity(sections: Callable[[str], bytes], build_id: bytes) -> bytes:
    """Return the identity of a supplementary file: its .debug_sup checksum, or its build ID."""
    data = sections(SUPPLEMENT)
    if len(data) > 3 and data[2] == 1:
        return _checksum(data[3:].partition(b"\0")[2])
    return build_id


def _checksum(data: bytes) -> bytes:
    """Return the checksum stored as a ULEB128 length and that many bytes (DWARF 5, 7.3.6)."""
    length = shift = at = 0
    while at < len(data) and at < 5:
        length |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            break
    return data[at : at + length]


def join(own: dict[str, bytes], types: bytes, other: dict[str, bytes] | None) -> dict[str, bytes]:
    """Join the sections of a file so that .debug_info has all entries.

    :param own: sections of the file that are in ``SHARED``.
    :param types: its .debug_types.
    :param other: sections of the supplementary file that are in ``SHARED``; None without one.
    :raises NotJoined: if the parts are inconsistent, or larger than 1 GiB together.
    """
    theirs = other if other is not None else {}
    base = {name: len(own.get(name, b"")) for name in SHARED}
    total = sum(map(len, [*own.values(), types, *theirs.values()]))
    if total > LIMIT:
        raise NotJoined(f"damaged debug data: the joined sections have {total} bytes, more than "
                        "1 GiB")
    joined = {name: own.get(name, b"") + theirs.get(name, b"") for name in SHARED
              if name in own or name in theirs}
    first, second = base[".debug_info"], base[".debug_info"] + len(types)
    info = bytearray(own.get(".debug_info", b"") + types + theirs.get(".debug_info", b""))
    abbrev = bytearray(joined.get(".debug_abbrev", b""))
    try:
        joiner = Join(info, abbrev)
        shifts = dict(joiner.make_plain(first, second))
        joiner.find_types(0, first)
        joiner.find_types(second, len(info))
        elsewhere = (None, None) if other is None else (second, base[".debug_str"])
        joiner.fit(0, second, (0, 0, 0, 0, 0, *elsewhere), shifts)
        joiner.fit(second, len(info), (
            base[".debug_abbrev"], second, base[".debug_str"], base[".debug_line_str"],
            base[".debug_line"], None, None), {})
        joiner.finish()
    except UnreadError as error:
        raise NotJoined(f"unsupported debug data: {error}") from None
    except JoinError as error:
        raise NotJoined(f"damaged debug data: {error}") from None
    joined[".debug_info"], joined[".debug_abbrev"] = bytes(info), bytes(abbrev)
    return joined
