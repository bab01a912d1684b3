"""``kinst line``: show the code of a source line, or the source lines of an instruction."""

import argparse
import json

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.descriptions.code_places import FORMS, code_places, is_line
from emu.host.errors import KinstError
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.described_file import described_file

EXAMPLES = (
    "kinst line -k kernel kern_malloc.c:659",
    "kinst line -k kernel malloc:12",
    "kinst line -k kernel malloc+0xc",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst line``."""
    kernel_option(parser)
    parser.add_argument("where", metavar="FILE:LINE | PLACE",
                        help="source line, e.g. kern_malloc.c:659, or instruction: "
                        f"{FORMS} (required)")
    parser.add_argument("--json", action="store_true",
                        help="print the answer as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Print the code of a source line, or the source lines of an instruction; return 0."""
    image = described_file(arguments.kernel, arguments.module)
    where, rows = arguments.where, list[dict[str, str | int]]()
    if is_line(image, where):
        lines = code_places(image, where)
        rows = [{"function": place.function.name, "offset": place.offset} for place in lines]
        text = [f"{place.function.name}:{place.offset}" for place in lines]
    else:
        text = []
        sources, index = Sources(image), debug_index(image)
        places = code_places(image, where)
        for place in places:
            if len(places) > 1:
                text.append(f"{place}:")
            line = sources.line(place.address)
            for function in index.stack(place.address):
                rows.append({"at": str(place), "function": function.name, "source": line})
                text.append("  " * (len(places) > 1) + f"{function.name}  {line}")
                line = sources.call(index, function) if function.inlined else line
        if not rows:
            raise KinstError(f"{where}: the debug data has no entry for this address")
    print(json.dumps(rows) if arguments.json else "\n".join(text))
    return 0
