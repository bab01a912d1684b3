"""Tests of rules for the project's texts: docstrings, options, messages and the README."""

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kinst_emu.cli.command_line import make_parser
from kinst_emu.commands.kinst import whole_parser

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("emu", "kinst", "dwarf", "images", "dtrace", "kinst_emu")
MOST_LINES = 200  # maximum number of lines in README.md
SVG = "{http://www.w3.org/2000/svg}"
# Phrases of messages that say neither what failed nor what to do.
RIDDLES = re.compile(r"\bis no \w|\bare no \w|\bthere is none\b|\bis none\b|\bit is there\b")
UNITS = {  # patterns that an option's help must match, keyed by metavar
    "SIZE": r"MiB|bytes",
    "SECONDS": r"second",
    "POSITION": r"position",
}


def sources(suffix):
    listed = subprocess.run(["git", "ls-files", f"*{suffix}"], capture_output=True, text=True,
                            check=False, cwd=ROOT)
    paths = [ROOT / name for name in listed.stdout.split()]
    return paths or [path for room in ROOMS for path in (ROOT / room).rglob(f"*{suffix}")]


def definitions(path):
    """Yield the modules, classes and functions of a Python file with their docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, ast.get_docstring(node)


def native_docstrings(path):
    return re.findall(r'"""(.*?)"""', path.read_text(), re.DOTALL)


def complete(docstring):
    """Return whether the first line of a docstring is a summary that stands alone."""
    first, _, rest = docstring.strip().partition("\n")
    return (not first.startswith(":") and first.endswith((".", "?", ":", "::"))
            and (not rest or rest.startswith("\n")))


def test_every_docstring_starts_with_a_line_that_is_complete_on_its_own():
    wrong = [f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
             for path in sources(".py") for node, text in definitions(path)
             if text is not None and not complete(text)]
    wrong += [f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
              for suffix in (".pyx", ".pxi") for path in sources(suffix)
              for text in native_docstrings(path) if not complete(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("docstring", "good"), [
    ("Return the site.", True), ("Return the site.\n\n:param x: y", True),
    (":param x: y", False), (":raises KeyError: never", False), ("Return the\nsite.", False)])
def test_a_summary_is_one_sentence_on_one_line(docstring, good):
    assert complete(docstring) == good


def public(path):
    """Yield the public definitions without a docstring, at module level and in public classes."""
    tree = ast.parse(path.read_text())
    if ast.get_docstring(tree) is None and tree.body:
        yield "module", 1
    nodes = list(tree.body)
    for node in nodes:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            nodes += node.body
        if (isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
                and ast.get_docstring(node) is None):
            yield node, node.lineno


def test_every_public_module_and_class_has_a_docstring():
    wrong = [f"{path.relative_to(ROOT)}:{line}" for room in ROOMS
             for path in sorted((ROOT / room).rglob("*.py"))
             for node, line in public(path) if node == "module" or isinstance(node, ast.ClassDef)]
    assert not wrong, "\n".join(wrong)


def options():
    """Yield (command, parser, option) for every option of every command."""
    (commands,) = (action for action in whole_parser()._actions
                   if isinstance(action, argparse._SubParsersAction))
    parsers = {f"kinst {name}": parser for name, parser in commands.choices.items()}
    parsers["kdtrace"] = make_parser()
    for name, parser in list(parsers.items()):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers |= {f"{name} {sub}": inner for sub, inner in action.choices.items()}
    for name, parser in parsers.items():
        for action in parser._actions:
            if action.help is not argparse.SUPPRESS and not isinstance(
                    action, argparse._SubParsersAction):
                yield name, parser, action


def shown(parser, action):
    """Return the help of an option as it is printed."""
    return (action.help or "") % dict(vars(action), prog=parser.prog)


def test_every_option_has_help_and_every_value_a_default():
    seen, wrong = 0, []
    for name, parser, action in options():
        seen += 1
        text = shown(parser, action)
        if not text:
            wrong.append(f"{name} {action.option_strings}: has no help")
        elif action.option_strings and action.nargs != 0 and not re.search(
                r"\bdefault\b|\brequired\b", text):
            wrong.append(f"{name} {action.option_strings}: says no default: {text}")
    assert seen > 200 and not wrong, "\n".join(wrong)


def test_every_option_with_a_unit_names_it():
    wrong = [f"{name} {action.option_strings}: {shown(parser, action)}"
             for name, parser, action in options()
             if isinstance(action.metavar, str) and action.metavar in UNITS
             and not re.search(UNITS[action.metavar], shown(parser, action))]
    assert not wrong, "\n".join(wrong)


def messages(path):
    """Yield (line number, text) of each error message that a file raises."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for text in node.exc.args[:1]:
                if isinstance(text, ast.Constant | ast.JoinedStr):
                    yield node.lineno, ast.unparse(text)


def test_no_message_is_a_riddle():
    wrong = [f"{path.relative_to(ROOT)}:{line}: {text}" for room in ROOMS
             for path in (ROOT / room).rglob("*.py") for line, text in messages(path)
             if RIDDLES.search(text)]
    assert not wrong, "\n".join(wrong)


def test_the_readme_is_short_and_no_line_of_prose_is_long():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= MOST_LINES
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        block = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            block ^= line.startswith("```")
            if not block and not line.startswith(("    ", "|", "```")):
                assert len(line) <= 100, f"{page.name}:{number}: {len(line)} characters"


def drawn_texts(content):
    """Return the texts of a picture, with the numbers and bytes that depend on compilers masked."""
    return [" ".join(re.sub(r"\b(0x)?[0-9a-f]*[0-9][0-9a-f]*\b", "#", text.text or "").split())
            for text in ElementTree.fromstring(content).iter(f"{SVG}text")]


def test_the_picture_of_the_readme_is_what_its_command_draws(tmp_path):
    path = tmp_path / "firing.svg"
    done = subprocess.run(
        [sys.executable, "-m", "kinst_emu.commands.kinst", "explain", "-k", "teaching/amd64",
         "strlen:16", "-c", 'strlen("abc")', "-n", "{ @lengths[probefunc] = count(); }",
         "--svg", str(path), "--at", "all"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    committed, drawn = (drawn_texts(file.read_bytes())
                        for file in (ROOT / "docs" / "firing.svg", path))
    assert drawn == committed, "make docs/firing.svg again with this command"
    assert b"<animate " in path.read_bytes() and "docs/firing.svg" in (
        ROOT / "README.md").read_text()
