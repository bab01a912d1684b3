"""Option for the source files of a kernel."""

import argparse
from pathlib import Path


def sources_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--sources``."""
    parser.add_argument("--sources", type=Path, metavar="DIR", action="append", default=[],
                        help="show the text of source lines from this directory, e.g. /usr/src; "
                        "may be repeated (default: file names and line numbers only)")
