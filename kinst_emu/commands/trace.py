"""``kinst trace``: show an instruction trace as text, or convert it to another format."""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from dtrace.flow.code import KernelCode
from dtrace.flow.outputs import TEXT, output
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.replay.flow import FlowFile
from images.catalog import described
from images.recordings import kernel_with
from kinst_emu.cli.completion import module_option
from kinst_emu.cli.flows import add_options as add_flow_options
from kinst_emu.cli.flows import check_output, opened

EXAMPLES = (
    "kinst trace call.trace",
    "kinst trace call.trace --as calls",
    "kinst trace boot.trace --as perfetto -o boot.pftrace",
    "kinst trace boot.trace --as flame -o boot.svg",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst trace``."""
    parser.add_argument("trace", type=Path, metavar="FILE",
                        help="instruction trace written by kinst replay --trace-insns (required)")
    parser.add_argument("-k", "--kernel", metavar="IMAGE",
                        help="kernel of the trace (default: the known kernel with the same build "
                        "ID)")
    module_option(parser)
    add_flow_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print or convert the trace, and return 0."""
    trace = FlowFile(arguments.trace)
    kind = arguments.format or TEXT
    check_output(arguments.output, kind, arguments.trace)
    image = kernel_with(trace.path, trace.head.architecture, trace.head.build_id, arguments.kernel,
                        (), arguments.module)
    if arguments.mark:
        raise KinstError("--mark: works only with kinst replay --trace-insns, because creating "
                         "probes needs a machine")
    code = KernelCode(image)
    names = {} if trace.tail is None else trace.tail.threads
    progress = (PROGRESS.working(f"reading {trace.path}")
                if arguments.output is not None or not sys.stdout.isatty() else nullcontext())
    with opened(arguments.output) as file:
        out = output(kind, code, trace.head, file, described(image), names, [])
        with progress:
            for piece in trace.pieces():
                out.take(piece)
            out.finish()
    if arguments.output is not None:
        print(f"wrote {arguments.output}")
    if trace.problem:
        raise KinstError(f"{trace.path}: the trace ends early: {trace.problem}")
    return 0
