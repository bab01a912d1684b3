"""``kinst type``: a type's layout, a function's prototype, a variable's type."""

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
    kernel_option(parser)
    parser.add_argument("name", metavar="NAME",
                        help="'struct thread', uint32_t, a function or a variable")
    parser.add_argument("--from", dest="format", choices=FORMATS,
                        help="which debug data to read (default: DWARF, else CTF)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
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
    found: dict[str, object] = {"type": declare(kind)}
    if not isinstance(kind, Procedure):
        size = size_text(kind)
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
