"""Types as C source spells them, such as ``const struct mbuf *``."""

import re

from dtrace.d.language.types import Universe
from dwarf.types import Pointer, Type

SPELLED = re.compile(r"(?:(struct|union|enum) )?([A-Za-z_]\w*(?: [A-Za-z_]\w*)*) ?((?:\* ?)*)")
QUALIFIERS = {"const", "volatile"}


def spelled_type(text: str, universe: Universe) -> Type | None:
    """Return the type with a given C spelling, or None if it is malformed or unknown."""
    found = SPELLED.fullmatch(" ".join(w for w in re.findall(r"\w+|\S", text)
                                       if w not in QUALIFIERS))
    if found is None:
        return None
    tag, name, stars = found.groups()
    kind = universe.tagged(tag, name) if tag else universe.named(name)
    if kind is None:
        return None
    for _star in range(stars.count("*")):
        kind = _pointer(kind)
    return kind


def _pointer(kind: Type) -> Pointer:
    return Pointer(lambda: kind)
