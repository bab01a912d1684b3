"""``kinst type``: show the layout of a type, the prototype of a function, or a variable's type."""

import argparse
import json

from dtrace.debug.kernel_types import FORMATS, kernel_types
from dwarf.debug_file import DebugDataError
from dwarf.types import MAX_STEPS, Array, Enumeration, Procedure, Structure, Type, declare, strip
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.described_file import described_file
from kinst_emu.cli.type_lines import MAX_LINES, declarations, definitions, size_text, unknown

EXAMPLES = (
    "kinst type -k kernel 'struct thread'",
    "kinst type -k kernel malloc",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst type``."""
    kernel_option(parser)
    parser.add_argument("name", metavar="NAME",
                        help="type, function or variable, e.g. 'struct thread', uint32_t or malloc "
                        "(required)")
    parser.add_argument("--from", dest="format", choices=FORMATS,
                        help="format of the debug data to read (default: DWARF, or CTF if there is "
                             "no DWARF)")
    parser.add_argument("--json", action="store_true",
                        help="print the answer as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Print the definitions and declarations of a name in the debug data, and return 0."""
    image = described_file(arguments.kernel, arguments.module)
    types = kernel_types(image, arguments.format)
    name = " ".join(arguments.name.split())
    rows: list[object] = []
    text: list[str] = []
    for kind in types.named(name):
        if (row := _json(kind)) not in rows:
            rows.append(row)
    text += definitions(types, name)
    for prototype in declarations(image, types, name):
        rows.append({"declaration": prototype})
        text.append(f"{prototype};")
    if not rows:
        raise unknown(image, types, name)
    print(json.dumps(rows) if arguments.json else "\n\n".join(text))
    return 0


# -- JSON -----------------------------------------------------------------------------------------


def _json(kind: Type) -> dict[str, object]:
    result: dict[str, object] = {"type": declare(kind)}
    if not isinstance(kind, Procedure):
        size = size_text(kind)
        result["size"] = int(size) if size.isdecimal() else None
    inner = strip(kind)
    if isinstance(inner, Structure):
        result["members"] = _json_members(inner, 0, [])
    elif isinstance(inner, Enumeration):
        result["values"] = dict(inner.values)
    return result


def _json_members(kind: Structure, depth: int, seen: list[None]) -> list[dict[str, object]]:
    """Return a structure's members as JSON, including the members of anonymous structures."""
    rows: list[dict[str, object]] = []
    for member in kind.members:
        seen.append(None)
        if depth > MAX_STEPS or len(seen) > MAX_LINES:
            raise DebugDataError(f"{declare(kind)}: too many members; the debug data is damaged")
        inner = member.type
        row: dict[str, object] = {"name": member.name, "type": declare(inner),
                                  "bit": member.offset, "width": member.width}
        for _ in range(MAX_STEPS):
            if not isinstance(inner, Array):
                break
            inner = inner.element
        if isinstance(inner, Structure) and not inner.name:
            row["members"] = _json_members(inner, depth + 1, seen)
        rows.append(row)
    return rows
