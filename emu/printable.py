"""Text from outside, as a terminal may be given it."""


def printable(text: object, most: int = 200) -> str:
    """One line without control characters, cut where it is too long."""
    found = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else "?" for c in found[:most])
    return shown + "..." * (len(found) > most)
