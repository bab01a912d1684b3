"""Text from outside, as a terminal may be given it."""

# What moves a cursor (but a tab) or turns the direction of text: C0, DEL and C1, line separators,
# and Unicode's bidirectional controls (UAX #9).
CONTROL = dict.fromkeys((*range(9), *range(10, 32), *range(127, 160), 0x200E, 0x200F,
                         *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "\ufffd")

_VISIBLE = {
    **{one: f"\\u{one:04x}" for one in CONTROL if one > 0x9F},
    **{one: f"^{chr(one ^ 0x40)}" for one in (*range(9), *range(11, 32), 127)},
    **{one: f"\\x{one:02x}" for one in range(128, 160)},
    **{0xDC00 + one: f"\\x{one:02x}" for one in range(128, 256)}}


def plain(text: str) -> str:
    """Text with what controls a terminal replaced."""
    return text if text.isprintable() else text.translate(CONTROL)


def visible(text: str, also: str = "") -> str:
    """Replace what would control a terminal, except for line ends and tabs, by what ``cat -v``
    shows (``^[``), and bytes that are not text (``surrogateescape``) by ``\\x9b``.

    :param also: control characters that stay, too.
    """
    shown = text.translate(_VISIBLE)
    return shown if not also or shown == text else "".join(
        one if one in also else one.translate(_VISIBLE) for one in text)


def name(text: bytes) -> str:
    """A name from a file: of a symbol, a type, a path."""
    return plain(text.decode("utf-8", "replace"))


def printable(text: object, most: int = 200) -> str:
    """One line without control characters, cut where it is too long."""
    found = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else "?" for c in found[:most])
    return shown + "..." * (len(found) > most)
