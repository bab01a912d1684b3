"""Text from outside, as a terminal may be given it."""

# What moves a cursor (but a tab) or turns the direction of text: C0, DEL and C1, line separators,
# and Unicode's bidirectional controls (UAX #9).
CONTROL = dict.fromkeys((*range(9), *range(10, 32), *range(127, 160), 0x200E, 0x200F,
                         *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "\ufffd")


def plain(text: str) -> str:
    """Text with what controls a terminal replaced."""
    return text if text.isprintable() else text.translate(CONTROL)


def name(text: bytes) -> str:
    """A name from a file: of a symbol, a type, a path."""
    return plain(text.decode("utf-8", "replace"))


def printable(text: object, most: int = 200) -> str:
    """One line without control characters, cut where it is too long."""
    found = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else "?" for c in found[:most])
    return shown + "..." * (len(found) > most)
