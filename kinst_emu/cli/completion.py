"""Completion of command lines by the shell, through argcomplete."""

import argparse
import os
import shlex


def completed_words() -> list[str]:
    """The words of the line that the shell asks to complete, without the command; else none."""
    if "_ARGCOMPLETE" not in os.environ:
        return []
    try:
        return shlex.split(os.environ.get("COMP_LINE", ""))[1:]
    except ValueError:  # a quote is still open
        return os.environ["COMP_LINE"].split()[1:]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and exit, when it asks."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    argcomplete.autocomplete(parser)


def kernel_option(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """``-k`` and ``--module``, which most commands have."""
    option = parser.add_argument("-k", "--kernel", required=required, metavar="IMAGE",
                                 help="a kernel file, or a name from 'kinst images'")
    option.completer = _images  # type: ignore[attr-defined]
    module_option(parser)


def module_option(parser: argparse.ArgumentParser) -> None:
    """``--module``."""
    parser.add_argument("--module", action="append", default=[], metavar="FILE.ko",
                        help="load this module behind the kernel, as its boot loader does, and "
                        "those that it depends on; may be repeated")


def _images(prefix: str, **_options: object) -> list[str]:
    import argcomplete

    from images import catalog

    names = [image.name for image in catalog.known() if image.path is not None]
    return [*names, *argcomplete.completers.FilesCompleter()(prefix)]
