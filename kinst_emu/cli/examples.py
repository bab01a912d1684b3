"""Add a description and examples to the help of a command."""

import argparse
from collections.abc import Sequence


def show_examples(parser: argparse.ArgumentParser, what: str, examples: Sequence[str]) -> None:
    """Set a command's description and list example command lines at the end of its help.

    :param what: one line that says what the command does.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{what[:1].upper()}{what[1:]}."
    lines = "\n".join(f"  {example}" for example in examples)
    parser.epilog = f"examples:\n{lines}"
