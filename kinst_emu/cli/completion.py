"""Shell completion of command lines through argcomplete."""

import argparse
import os
import shlex


def completed_words() -> list[str]:
    """Return the words of the command line that the shell asks to complete, or an empty list."""
    if "_ARGCOMPLETE" not in os.environ:
        return []
    try:
        return shlex.split(os.environ.get("COMP_LINE", ""))[1:]
    except ValueError:  # a quote is still open
        return os.environ["COMP_LINE"].split()[1:]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a completion request of the shell and exit; do nothing without a request."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    argcomplete.autocomplete(parser)


def kernel_option(parser: argparse.ArgumentParser, optional: str = "") -> None:
    """Add ``-k`` and ``--module``, two options of most commands.

    :param optional: help text for when ``-k`` may be left out; empty if it is required.
    """
    option = parser.add_argument("-k", "--kernel", required=not optional, metavar="IMAGE",
                                 help="kernel to use: a file, or a name from 'kinst images' "
                                 f"({optional or 'required'})")
    option.completer = _images  # type: ignore[attr-defined]
    module_option(parser)


def module_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--module``."""
    parser.add_argument("--module", action="append", default=[], metavar="FILE.ko",
                        help="load this kernel module and its dependencies, as the boot loader "
                        "does; may be repeated (default: no modules)")


def _images(prefix: str, **_options: object) -> list[str]:
    import argcomplete

    from images import catalog

    names = [image.name for image in catalog.known() if image.path is not None]
    return [*names, *argcomplete.completers.FilesCompleter()(prefix)]
