"""``kinst disas``: list a function's instructions with their verdicts, or list all functions."""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.debug.symbols import chosen_functions
from dtrace.descriptions.code_places import FORMS, code_places
from dtrace.flow.code import KernelCode
from dwarf.debug_file import debug_file
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.symbols import KERNEL, Symbol
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from images import catalog
from kinst.code.listing import image_code, instructions
from kinst.relocation.trap import trap_of
from kinst.relocation.verdict import summary
from kinst_emu.cli.completion import kernel_option

PLACE = re.compile(r"[:+`@]|\A0[xX]")  # matches a place in code, but not a plain function name
EXAMPLES = (
    "kinst disas -k teaching/amd64 strlen",
    "kinst disas -k teaching/amd64",
    "kinst disas -k teaching/amd64 strlen+0x4 string.c:6",
    "kinst disas -k kernel 'uma_z*'",
    "kinst disas -k kernel --json malloc free",
    "kinst disas -k kernel malloc --counts boot.rec",
    "kinst disas -k kernel malloc --counts boot",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst disas``."""
    kernel_option(parser)
    parser.add_argument("function", nargs="*", metavar="FUNCTION",
                        help="function name, shell pattern for several functions, or a place to "
                        f"mark in the listing of its function: {FORMS} (default: list all "
                        "functions)")
    parser.add_argument("--no-source", dest="source", action="store_false",
                        help="do not show source lines (default: show them)")
    parser.add_argument("--counts", metavar="WHAT",
                        help="show how often each instruction was executed in this recording, or "
                        "in a workload that is recorded first with the default options of kinst "
                        "record: '$ COMMAND', a C file, calls in the booted kernel, or 'boot' "
                        "(default: no counts)")
    parser.add_argument("--json", action="store_true",
                        help="print the list as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Print the instructions of the chosen functions, or a list of all functions; return 0."""
    image = catalog.find(arguments.kernel, arguments.module)
    if arguments.counts is not None and not arguments.function:
        raise KinstError("--counts: works only with functions; give one")
    if not arguments.function:
        _list(image, arguments.json)
        return 0
    arch = arch_of(image)
    guest = guest_of(image, arch.name)
    trap, exclusions = trap_of(guest, arch.name), guest.traps.exclusions
    counts = None if arguments.counts is None else _counts(arguments)
    rows = []
    for symbol, marked in _chosen(image, arguments.function):
        table = instructions(trap, image_code(image, symbol), symbol)
        sources = _sources(image, symbol, arguments.source)
        left_alone = exclusions.reason(symbol.name)
        if not arguments.json:
            print(f"{symbol.name}: {symbol.address:#x}, {symbol.size} bytes")
        before: str | None = None
        for i in table:
            verdict = summary(i.verdict)
            if left_alone:
                verdict = f"refuse: the function {left_alone}"
            text, source = arch.disassemble(i.code, i.address), sources.get(i.address)
            if arguments.json:
                rows.append({
                    "function": symbol.name, "address": i.address, "offset": i.offset,
                    "bytes": i.code.hex(), "instruction": text, "verdict": verdict,
                    "source": source,
                    **({"asked": i.offset in marked} if marked else {}),
                    **({} if counts is None else {"count": counts[i.address]}),
                })
                continue
            if source is not None and source != before:
                print(f"  {source}")
                before = source
            sign = "->" if i.offset in marked else "  "
            times = "" if counts is None else f"{counts[i.address]:>10}  "
            print(f"{sign}{i.offset:>4}  {times}{i.code.hex(' '):<30} {text:<44} {verdict}")
    if arguments.json:
        print(json.dumps(rows))
    return 0


def _counts(arguments: argparse.Namespace) -> Counter[int]:
    """Return how often the instructions of the kernel were executed in the recording."""
    # Deferred: slow to import, and most listings have no counts
    from kinst_emu.runs.counted import count, counter
    from kinst_emu.runs.recorded_workload import played_workload, with_defaults

    with played_workload(with_defaults(arguments, arguments.counts)) as player:
        coverage = counter(player, KernelCode(player.machine.image))
        count(player, coverage, arguments.counts)
        return coverage.counts


def _chosen(image: Image, texts: Sequence[str]) -> Iterator[tuple[Symbol, set[int]]]:
    """Yield each chosen function with the offsets to mark in it."""
    for text in texts:
        if not PLACE.search(text):
            yield from ((symbol, set()) for symbol in chosen_functions(image, text))
            continue
        by_function: dict[Symbol, set[int]] = {}
        for place in code_places(image, text):
            by_function.setdefault(place.function, set()).add(place.offset)
        yield from by_function.items()


def _list(image: Image, as_json: bool) -> None:
    """Print the address, size and name of all functions, in address order."""
    if as_json:
        print(json.dumps([{"function": s.name, "address": s.address, "size": s.size,
                           "module": s.module_name} for s in image.symbols.functions()]))
        return
    for symbol in image.symbols.functions():
        module = "" if symbol.module_name == KERNEL else f"  {symbol.module_name}"
        print(f"{symbol.address:#x}  {symbol.size:>8}  {symbol.name}{module}")


def _sources(image: Image, symbol: Symbol, wanted: bool) -> dict[int, str]:
    """Map each instruction address in a function to its source line and its inline functions."""
    lines: dict[int, str] = {}
    if not wanted or debug_file(image.file) is None:
        return lines
    index, sources = debug_index(image), Sources(image)
    for begin, end, line in sources.lines(symbol.address, symbol.address + symbol.size):
        for address in range(begin, end):
            names = [f.name for f in index.stack(address) if f.inlined]
            lines[address] = f"{line}  ({' in '.join(names)})" if names else line
    return lines
