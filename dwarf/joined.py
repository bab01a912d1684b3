"""Debug data of several places as one: type units, and the file that dwz has put entries into."""

from collections.abc import Callable
from dataclasses import dataclass

from dwarf._join import Join, JoinError, UnreadError
from emu.host.errors import KinstError

# Of the parts that are put behind each other; the lengths of those before are added to offsets.
SHARED = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str", ".debug_line")
TYPES = ".debug_types"
ALTERNATE, SUPPLEMENT = ".gnu_debugaltlink", ".debug_sup"
LIMIT = 1 << 30  # bytes of a joined section


class NotJoined(KinstError):
    """The parts cannot be made one."""


@dataclass(frozen=True)
class SupplementLink:
    """What a file says of its supplementary file.

    :param name: its path, absolute or from the directory of the file that names it.
    :param identity: its build id, or what its own .debug_sup has.
    """

    name: str
    identity: bytes


def link(sections: Callable[[str], bytes]) -> SupplementLink | None:
    """The supplementary file that a file needs; None: none.

    :param sections: gives a section's content, empty where there is none.
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
    """By what a supplementary file is known: its .debug_sup's checksum, else its build id."""
    data = sections(SUPPLEMENT)
    if len(data) > 3 and data[2] == 1:
        return _checksum(data[3:].partition(b"\0")[2])
    return build_id


def _checksum(data: bytes) -> bytes:
    """An ULEB128 length, and so many bytes (DWARF 5, 7.3.6)."""
    length = shift = at = 0
    while at < len(data) and at < 5:
        length |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            break
    return data[at : at + length]


def join(own: dict[str, bytes], types: bytes, other: dict[str, bytes] | None) -> dict[str, bytes]:
    """The sections of a file as if all its entries were in .debug_info.

    :param own: the file's sections of ``SHARED``, where they are there.
    :param types: its .debug_types.
    :param other: the supplementary file's sections of ``SHARED``; None: there is none.
    :raises NotJoined: when they do not hold together, or are of more than 1 GiB.
    """
    theirs = other if other is not None else {}
    base = {name: len(own.get(name, b"")) for name in SHARED}
    total = sum(map(len, [*own.values(), types, *theirs.values()]))
    if total > LIMIT:
        raise NotJoined(f"damaged debug data: {total} bytes in several places")
    found = {name: own.get(name, b"") + theirs.get(name, b"") for name in SHARED
             if name in own or name in theirs}
    first, second = base[".debug_info"], base[".debug_info"] + len(types)
    info = bytearray(own.get(".debug_info", b"") + types + theirs.get(".debug_info", b""))
    abbrev = bytearray(found.get(".debug_abbrev", b""))
    try:
        made = Join(info, abbrev)
        shifts = dict(made.make_plain(first, second))
        made.find_types(0, first)
        made.find_types(second, len(info))
        elsewhere = (None, None) if other is None else (second, base[".debug_str"])
        made.fit(0, second, (0, 0, 0, 0, 0, *elsewhere), shifts)
        made.fit(second, len(info), (
            base[".debug_abbrev"], second, base[".debug_str"], base[".debug_line_str"],
            base[".debug_line"], None, None), {})
        made.finish()
    except UnreadError as error:
        raise NotJoined(f"debug data of a shape that is not read: {error}") from None
    except JoinError as error:
        raise NotJoined(f"damaged debug data: {error}") from None
    found[".debug_info"], found[".debug_abbrev"] = bytes(info), bytes(abbrev)
    return found
