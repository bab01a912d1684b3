"""Examples at the end of a command's help."""

import argparse
from collections.abc import Sequence


def show_examples(parser: argparse.ArgumentParser, what: str, examples: Sequence[str]) -> None:
    """:param what: the command does, in a line."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{what[:1].upper()}{what[1:]}."
    lines = "\n".join(f"  {example}" for example in examples)
    parser.epilog = f"examples:\n{lines}"
