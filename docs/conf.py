"""Sphinx configuration for ``make docs``, which checks all links and treats warnings as errors."""

import argparse
import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "kinst-emu"
author = "the authors of kinst-emu"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "kinst-emu"
html_copy_source = False
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
nitpicky = False
suppress_warnings = ["misc.highlighting_failure"]
COLUMNS = 100


def _commands(folder: Path) -> None:
    """Generate the command reference from the ``--help`` texts."""
    from kinst_emu.cli.command_line import make_parser
    from kinst_emu.commands.kinst import whole_parser

    lines = ["# Commands", "", "This page has the `--help` text of every command.", ""]
    for name, parser in subcommands(whole_parser()).items():
        lines += [f"## kinst {name}", "", "```text", parser.format_help().rstrip(), "```", ""]
    lines += ["## kdtrace", "", "```text", make_parser().format_help().rstrip(), "```", ""]
    _write(folder / "commands.md", lines)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a command's subcommands, keyed by subcommand name."""
    (found,) = (action for action in parser._actions
                if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def _python(folder: Path) -> None:
    """Generate the Python API reference from the docstrings."""
    import kinst_emu

    lines = ["# Python", "", "This page has the docstrings of the Python interface; "
             "[python.md](../python.md) introduces it.", ""]
    for name in kinst_emu.__all__:
        thing = getattr(kinst_emu, name)
        if isinstance(thing, type):
            kind, options = "autoclass", ["   :members:", "   :show-inheritance:"]
        elif callable(thing):
            kind, options = "autofunction", []
        else:
            continue
        lines += [f"## {name}", "", "```{eval-rst}",
                  f".. {kind}:: {thing.__module__}.{thing.__name__}", *options, "```", ""]
    _write(folder / "python.md", lines)


def _readme(folder: Path) -> None:
    """Write the README as a page of the site; links to files outside the site become plain text."""
    text = (ROOT / "README.md").read_text().replace("](docs/", "](../")
    text = re.sub(r"(?<!!)\[([^]]*)\]\(\.\./firing\.svg\)", r"\1", text)  # links to an image
    _write(folder / "readme.md", re.sub(r"\[([^]]*)\]\((?!\.\./|https?:)[^)]*\)", r"\1", text)
           .split("\n"))


def _to_readme(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Redirect links to the repository's README to the site's README page."""
    source[0] = source[0].replace("](../README.md)", "](reference/readme.md)")


def _write(path: Path, lines: list[str]) -> None:
    """Write a page only if it has changed, so that Sphinx does not rebuild it."""
    path.parent.mkdir(exist_ok=True)
    content = "\n".join(lines)
    if not path.exists() or path.read_text() != content:
        path.write_text(content)


def setup(app: Sphinx) -> None:
    os.environ["COLUMNS"] = str(COLUMNS)
    _commands(Path(app.srcdir) / "reference")
    _python(Path(app.srcdir) / "reference")
    _readme(Path(app.srcdir) / "reference")
    app.connect("source-read", _to_readme)
