"""``kinst line``: the code of a source line, or the source lines of an instruction."""

import argparse
import json

from dtrace.debug_data import Sources
from dtrace.debug_index import debug_index
from dtrace.symbols import sized_functions
from emu.errors import KinstError
from images import catalog
from kinst_emu.completion import kernel_option

EXAMPLES = (
    "kinst line -k kernel kern_malloc.c:659",
    "kinst line -k kernel malloc:12",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser)
    parser.add_argument("where", metavar="FILE:LINE | FUNCTION:OFFSET",
                        help="a source line, e.g. kern_malloc.c:659, or an instruction")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    image = catalog.find(arguments.kernel, arguments.module)
    name, colon, number = arguments.where.rpartition(":")
    if not colon or not name or not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise KinstError(f"'{arguments.where[:60]}' is neither FILE:LINE nor FUNCTION:OFFSET")
    sources = Sources(image)
    rows: list[dict[str, str | int]] = []
    if image.symbols.find(name) is not None:
        functions = sized_functions(image, name)
        if all(int(number) >= symbol.size for symbol in functions):
            end = max(symbol.size for symbol in functions)
            raise KinstError(f"{name}:{number}: {name} ends at offset {end}")
        for symbol in functions:
            if int(number) >= symbol.size:
                continue  # another of that name has it
            address = symbol.address + int(number)
            index, line = debug_index(image), sources.line(address)
            for function in index.stack(address):
                rows.append({"function": function.name, "source": line})
                line = sources.call(index, function) if function.inlined else line
        if not rows:
            raise KinstError(f"{name}:{number}: the debug data says nothing about it")
        text = [f"{row['function']}  {row['source']}" for row in rows]
    else:
        for low, high in sources.code(name, int(number)):
            function_at = image.symbols.function_at(low)
            if function_at is not None:
                rows.append({"function": function_at.name, "offset": low - function_at.address,
                             "bytes": high - low})
        if not rows:
            raise KinstError(f"{name}:{number}: there is no code of that line")
        text = [f"{row['function']}:{row['offset']}" for row in rows]
    print(json.dumps(rows) if arguments.json else "\n".join(text))
    return 0
