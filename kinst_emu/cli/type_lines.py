"""Print types, functions and variables as C declarations, with the layout of structures."""

import difflib
from collections.abc import Iterator

from dwarf.debug_file import DebugDataError
from dwarf.types import (
    MAX_STEPS,
    Array,
    Enumeration,
    Structure,
    Type,
    Typedef,
    Types,
    declare,
    size_of,
    strip,
)
from emu.elf.image import Image
from emu.elf.symbols import STT_FUNC
from emu.host.errors import KinstError

MAX_LINES = 1 << 16
TAGS = ("struct", "union", "enum")


def definitions(types: Types, name: str) -> list[str]:
    """Return the distinct definitions of all types with the given name."""
    return list(dict.fromkeys("\n".join(_definition(kind)) for kind in types.named(name)))


def lines(image: Image, types: Types, name: str) -> list[str]:
    """Return the lines of all definitions and declarations of a name.

    :raises KinstError: when there is no type, function or variable with this name.
    """
    name = " ".join(name.split())
    texts = [*definitions(types, name), *(f"{one};" for one in declarations(image, types, name))]
    if not texts:
        raise unknown(image, types, name)
    return "\n\n".join(texts).split("\n")


def unknown(image: Image, types: Types, name: str) -> KinstError:
    """Return the error for an unknown name, with suggestions of similar names."""
    return KinstError(f"{image.path}: {types.format} has no type, function or variable "
                      f"'{name}'{_hint(types, name)}")


def declarations(image: Image, types: Types, name: str) -> list[str]:
    """Return the distinct declarations of all functions and variables with the given name."""
    declared: list[str] = []
    for symbol in image.symbols.named(name):
        kind = (types.function if symbol.kind == STT_FUNC else types.variable)(
            name, symbol.address)
        if kind is not None:
            declared.append(declare(kind, name))
    if not declared and (kind := types.function(name)) is not None:
            declared.append(declare(kind, name))  # a function that is inlined everywhere
    return list(dict.fromkeys(declared))


def _hint(types: Types, name: str) -> str:
    names = set(types.names())
    near = [n for tag in TAGS if (n := f"{tag} {name}") in names]
    near = near or difflib.get_close_matches(name, names, 3, 0.8)
    return f"; did you mean {', '.join(near)}?" if near else ""


def _definition(kind: Type) -> Iterator[str]:
    if isinstance(kind, Typedef):
        yield f"typedef {declare(kind.target, kind.name)};"
        kind = strip(kind)
        if not isinstance(kind, Structure | Enumeration):
            yield f"/* {size_of(kind)} bytes */"
            return
    if isinstance(kind, Structure):
        yield "/* offset:bit   size */"
        for number, line in enumerate(_layout(kind, "", 0, 0)):
            if number == MAX_LINES:
                raise DebugDataError(f"{declare(kind)} has more than {MAX_LINES} lines: the debug "
                                     "data is damaged")
            yield line
    elif isinstance(kind, Enumeration):
        yield f"{declare(kind)} {{  /* {kind.size} bytes */".replace("{...} ", "")
        yield from (f"    {name} = {value}," for name, value in kind.values)
        yield "};"
    else:
        yield f"{declare(kind)};  /* {size_of(kind)} bytes */"


def _layout(kind: Structure, name: str, begin: int, depth: int) -> Iterator[str]:
    """Yield the lines for a structure at a bit offset; anonymous members are expanded."""
    if depth > MAX_STEPS:
        raise DebugDataError(f"{declare(kind)}: structures are nested more than {MAX_STEPS} levels "
                             "deep: the debug data is damaged")
    blank, indent = " " * 22, "    " * depth
    yield f"{blank}{indent}{kind.kind} {kind.name}{' ' if kind.name else ''}{{"
    for member in kind.members:
        offset, inner, dimensions = begin + member.offset, member.type, ""
        bit = f":{offset % 8}" if member.width is not None or offset % 8 else ""
        place = f"/* {str(offset // 8) + bit:>9} {size_text(inner):>6} */ "
        while isinstance(inner, Array) and len(dimensions) < MAX_STEPS:
            dimensions += f"[{'' if inner.count is None else inner.count}]"
            inner = inner.element
        if isinstance(inner, Structure) and not inner.name:
            yield from _layout(inner, f"{member.name}{dimensions}", offset, depth + 1)
        else:
            width = "" if member.width is None else f" : {member.width}"
            yield f"{place}{indent}    {declare(member.type, member.name)}{width};"
    size = f"  /* {kind.size} bytes */"
    yield f"{blank}{indent}}}{' ' if name else ''}{name};{size}"


def size_text(kind: Type) -> str:
    """Return the size of a type in bytes as text, or ``?`` if the size is unknown."""
    try:
        return str(size_of(kind))
    except DebugDataError:
        return "?"
