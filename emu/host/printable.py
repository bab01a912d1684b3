"""Text from untrusted sources, made safe for a terminal."""

# Characters that move the cursor (except tab) or change the direction of text: C0, DEL and C1, line
# separators, and Unicode's bidirectional controls (UAX #9).
CONTROL = dict.fromkeys((*range(9), *range(10, 32), *range(127, 160), 0x200E, 0x200F,
                         *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "\ufffd")

_VISIBLE = {
    **{one: f"\\u{one:04x}" for one in CONTROL if one > 0x9F},
    **{one: f"^{chr(one ^ 0x40)}" for one in (*range(9), *range(11, 32), 127)},
    **{one: f"\\x{one:02x}" for one in range(128, 160)},
    **{0xDC00 + one: f"\\x{one:02x}" for one in range(128, 256)}}


def plain(text: str) -> str:
    """Replace characters that control a terminal with U+FFFD."""
    return text if text.isprintable() else text.translate(CONTROL)


def visible(text: str, also: str = "") -> str:
    """Make control characters visible, except newlines and tabs.

    They are shown as by ``cat -v`` (``^[``), and undecodable bytes (``surrogateescape``) as
    ``\\x9b``.

    :param also: further control characters to leave unchanged.
    """
    shown = text.translate(_VISIBLE)
    return shown if not also or shown == text else "".join(
        one if one in also else one.translate(_VISIBLE) for one in text)


def name(text: bytes) -> str:
    """Decode a symbol, type or path name from a file, and replace terminal control characters."""
    return plain(text.decode("utf-8", "replace"))


def printable(text: object, most: int = 200) -> str:
    """Return text truncated to ``most`` characters, with control characters replaced by ``?``."""
    start = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else "?" for c in start[:most])
    return shown + "..." * (len(start) > most)


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, which is plural unless the number is 1: ``2 schedules``."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}s"
