"""``kinst type``: a type's layout, a function's prototype, a variable's type."""

import argparse
import difflib
import json
from collections.abc import Iterator

from dtrace.kernel_types import FORMATS, kernel_types
from dwarf.debug_file import DebugDataError
from dwarf.types import (
    MAX_STEPS,
    Array,
    Enumeration,
    Procedure,
    Structure,
    Type,
    Typedef,
    Types,
    declare,
    size_of,
    strip,
)
from emu.elf import Image
from emu.errors import KinstError
from emu.symbols import STT_FUNC
from images import catalog
from kinst_emu.completion import kernel_option

MAX_LINES = 1 << 16
TAGS = ("struct", "union", "enum")

EXAMPLES = (
    "kinst type -k kernel 'struct thread'",
    "kinst type -k kernel malloc",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser)
    parser.add_argument("name", metavar="NAME",
                        help="'struct thread', uint32_t, a function or a variable")
    parser.add_argument("--from", dest="format", choices=FORMATS,
                        help="which debug data to read (default: DWARF, else CTF)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    image = catalog.find(arguments.kernel, arguments.module)
    types = kernel_types(image, arguments.format)
    name = " ".join(arguments.name.split())
    rows: list[object] = []
    text: list[str] = []
    for kind in types.named(name):
        rows.append(_json(kind))
        text.append("\n".join(_definition(kind)))
    for prototype in _symbols(image, types, name):
        rows.append({"declaration": prototype})
        text.append(f"{prototype};")
    if not rows:
        raise KinstError(f"{image.path}: {types.format} knows no type, function or variable "
                         f"'{name}'{_hint(types, name)}")
    print(json.dumps(rows) if arguments.json else "\n\n".join(text))
    return 0


def _symbols(image: Image, types: Types, name: str) -> list[str]:
    """Declarations of the functions and variables of a name, each once."""
    found: list[str] = []
    for symbol in image.symbols.named(name):
        kind = (types.function if symbol.kind == STT_FUNC else types.variable)(
            name, symbol.address)
        if kind is not None:
            found.append(declare(kind, name))
    if not found and (kind := types.function(name)) is not None:
        found.append(declare(kind, name))  # inlined everywhere: no symbol
    return list(dict.fromkeys(found))


def _hint(types: Types, name: str) -> str:
    names = set(types.names())
    near = [n for tag in TAGS if (n := f"{tag} {name}") in names]
    near = near or difflib.get_close_matches(name, names, 3, 0.8)
    return f"; did you mean {', '.join(near)}?" if near else ""


# -- text -----------------------------------------------------------------------------------------


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
                raise DebugDataError(f"{declare(kind)} has more than {MAX_LINES} lines: damaged "
                                     "debug data")
            yield line
    elif isinstance(kind, Enumeration):
        yield f"{declare(kind)} {{  /* {kind.size} bytes */".replace("{...} ", "")
        yield from (f"    {name} = {value}," for name, value in kind.values)
        yield "};"
    else:
        yield f"{declare(kind)};  /* {size_of(kind)} bytes */"


def _layout(kind: Structure, name: str, begin: int, depth: int) -> Iterator[str]:
    """Lines of a structure that begins at a bit; structures without a name are spread out."""
    if depth > MAX_STEPS:
        raise DebugDataError("structures nested too deep: damaged debug data")
    blank, indent = " " * 22, "    " * depth
    yield f"{blank}{indent}{kind.kind} {kind.name}{' ' if kind.name else ''}{{"
    for member in kind.members:
        offset, inner, dimensions = begin + member.offset, member.type, ""
        bit = f":{offset % 8}" if member.width is not None or offset % 8 else ""
        place = f"/* {str(offset // 8) + bit:>9} {_size(inner):>6} */ "
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


def _size(kind: Type) -> str:
    try:
        return str(size_of(kind))
    except DebugDataError:
        return "?"


# -- JSON -----------------------------------------------------------------------------------------


def _json(kind: Type) -> dict[str, object]:
    found: dict[str, object] = {"type": declare(kind)}
    if not isinstance(kind, Procedure):
        size = _size(kind)
        found["size"] = int(size) if size.isdecimal() else None
    inner = strip(kind)
    if isinstance(inner, Structure):
        found["members"] = _json_members(inner, 0, [])
    elif isinstance(inner, Enumeration):
        found["values"] = dict(inner.values)
    return found


def _json_members(kind: Structure, depth: int, seen: list[None]) -> list[dict[str, object]]:
    """Of structures without a name, the members too."""
    found: list[dict[str, object]] = []
    for member in kind.members:
        seen.append(None)
        if depth > MAX_STEPS or len(seen) > MAX_LINES:
            raise DebugDataError(f"{declare(kind)} has too many members: damaged debug data")
        inner = member.type
        row: dict[str, object] = {"name": member.name, "type": declare(inner),
                                  "bit": member.offset, "width": member.width}
        for _ in range(MAX_STEPS):
            if not isinstance(inner, Array):
                break
            inner = inner.element
        if isinstance(inner, Structure) and not inner.name:
            row["members"] = _json_members(inner, depth + 1, seen)
        found.append(row)
    return found
