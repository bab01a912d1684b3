"""``kinst inline``: list the inline copies of a function, or the inline calls in a function."""

import argparse
import json
from collections.abc import Iterable
from typing import Any

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.debug.symbols import sized_functions
from dwarf.index import DebugIndex, Function
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from kinst.providers import inline
from kinst.providers.patterns import is_glob, regular
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.described_file import described_file
from kinst_emu.cli.inline_derivation import as_json, derived, entered_in, listing

EXAMPLES = (
    "kinst inline -k kernel critical_enter",
    "kinst inline -k kernel --dwarf critical_enter",
    "kinst inline -k kernel --in malloc",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst inline``."""
    kernel_option(parser)
    parser.add_argument("function", nargs="?", metavar="NAME",
                        help="inline function whose copies to list, or a shell pattern for several "
                        "functions (required, except with --in)")
    parser.add_argument("--in", dest="inside", metavar="FUNCTION",
                        help="list all inline calls in this function as a tree (default: list the "
                        "copies of NAME)")
    parser.add_argument("--dwarf", action="store_true",
                        help="with NAME: also show the debug data entries of each copy and how its "
                        "FUNCTION:OFFSET is computed from them (default: only the copies)")
    parser.add_argument("--json", action="store_true",
                        help="print the list as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Print the inline copies of a function or the inline calls in a function, and return 0."""
    image = described_file(arguments.kernel, arguments.module)
    if (arguments.function is None) == (arguments.inside is None):
        raise KinstError("give either the NAME of an inline function or --in FUNCTION")
    if arguments.dwarf and arguments.function is None:
        raise KinstError("--dwarf: cannot be used with --in; give the NAME of an inline function")
    index = debug_index(image)
    sources = Sources(image)
    if arguments.inside is not None:
        return _inside(image, index, sources, arguments.inside, arguments.json)
    copies = _copies(image, index, arguments.function)
    entrances = inline.Entrances(image)
    rows = [_row(image, index, sources, copy, entrances) for copy in copies]
    if arguments.dwarf:
        shown = list(derived(image, index, sources, copies))
        print(json.dumps([as_json(one) for one in shown]) if arguments.json
              else "\n".join(listing(shown)).rstrip())
        return 0
    if arguments.json:
        print(json.dumps(rows))
        return 0
    several = is_glob(arguments.function)
    for row in rows:
        pieces = " ".join(f"[{low:#x}, {high:#x})" for low, high in row["ranges"])
        nested = f"  in {' in '.join(row['nesting'])}" if row["nesting"] else ""
        name = f"{row['function']}  " if several else ""
        print(f"{name}{row['caller'] or '?'}{row['offset']:+d}  {pieces}  {row['call']}{nested}")
    return 0


def _copies(image: Image, index: DebugIndex, wanted: str) -> list[Function]:
    """Return the inline copies of the functions that a name or pattern selects.

    :raises KinstError: when the functions do not exist or have no inline copy.
    """
    accept = regular(wanted).match
    names = [name for name in index.names() if accept(name)] if is_glob(wanted) else [wanted]
    copies = [copy for name in names for copy in index.copies(name)]
    if copies:
        return copies
    if any(index.named(name) for name in names):
        raise KinstError(f"{image.path}: '{wanted}' has no inline copy")
    raise KinstError(f"{image.path}: the debug data has no function '{wanted}'")


def _row(image: Image, index: DebugIndex, sources: Sources, copy: Function,
         entrances: inline.Entrances) -> dict[str, Any]:
    caller, offset = entered_in(image, index, copy, entrances)
    nesting: list[str] = []
    parent = copy.parent
    while parent is not None and len(nesting) < 256:
        enclosing = index.function(parent)
        if not enclosing.inlined:
            break
        nesting.append(enclosing.name)
        parent = enclosing.parent
    return {
        "function": copy.name, "caller": caller, "offset": offset,
        "ranges": [list(piece) for piece in copy.pieces], "call": sources.call(index, copy),
        "nesting": nesting,
    }


def _inside(image: Image, index: DebugIndex, sources: Sources, name: str, as_json: bool) -> int:
    trees = []
    for symbol in sized_functions(image, name):
        copies = _copies_in(index, symbol)
        children: dict[int | None, list[Function]] = {}
        numbers = {copy.number for copy in copies}
        for copy in copies:
            children.setdefault(copy.parent if copy.parent in numbers else None, []).append(copy)
        trees.append({"function": symbol.name, "address": symbol.address,
                      "inline": _tree(index, children, None, sources)})
        if not as_json:
            print(f"{symbol.name}: {symbol.address:#x}, {symbol.size} bytes")
            _print_tree(trees[-1]["inline"], symbol.address, 1)  # type: ignore[arg-type]
    if as_json:
        print(json.dumps(trees))
    return 0


def _copies_in(index: DebugIndex, symbol: Symbol) -> list[Function]:
    """Return the inline copies in a function, including those in its parts at other addresses."""
    by_number = {copy.number: copy for copy in index.inside(symbol.address,
                                                        symbol.address + symbol.size)}
    for function in index.named(symbol.name):
        if not function.inlined and any(low == symbol.address for low, _high in function.pieces):
            for low, high in function.pieces:
                by_number |= {copy.number: copy for copy in index.inside(low, high)}
    return [by_number[number] for number in sorted(by_number)]


def _tree(
    index: DebugIndex, children: dict[int | None, list[Function]], parent: int | None,
    sources: Sources,
) -> list[dict[str, Any]]:
    return [
        {"name": copy.name, "ranges": [list(piece) for piece in copy.pieces],
         "call": sources.call(index, copy),
         "inline": _tree(index, children, copy.number, sources)}
        for copy in sorted(children.get(parent, ()), key=lambda c: min(c.pieces))
    ]


def _print_tree(nodes: Iterable[dict[str, Any]], base: int, depth: int) -> None:
    for node in nodes:
        pieces = " ".join(f"{low - base}..{high - base}" for low, high in node["ranges"])
        print(f"{'  ' * depth}{node['name']}  {pieces}  {node['call']}")
        _print_tree(node["inline"], base, depth + 1)
