"""Helpers that run the examples of docs/python.md."""

import doctest
import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path

DOC = Path(__file__).resolve().parent.parent / "docs" / "python.md"
FREEBSD = "## On a FreeBSD kernel"
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.M | re.S)


def blocks(kind, freebsd):
    """Return the code blocks of docs/python.md that are written in a given language.

    :param freebsd: whether to include the blocks that need a FreeBSD kernel.
    """
    text = DOC.read_text()
    if not freebsd:
        text = text[: text.index(FREEBSD)]
    return [block for language, block in BLOCK.findall(text) if language == kind]


def typed_in(image, freebsd):
    """Run the interactive examples with an image as 'kernel'; return doctest's failure report."""
    os.symlink(image.path, "kernel")
    debug = image.path.with_name(image.path.name + ".debug")
    if debug.exists():
        os.symlink(debug, "kernel.debug")
    source = "\n".join(blocks("pycon", freebsd))
    test = doctest.DocTestParser().get_doctest(source, {}, "python.md", str(DOC), 0)
    assert len(test.examples) > 50
    out = io.StringIO()
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False).run(test, out=out.write)
    return out.getvalue()


def first_example(image):
    """Run the first example with an image as 'kernel' and return its output."""
    os.symlink(image.path, "kernel")
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(blocks("python", False)[0], str(DOC), "exec"), {})
    return out.getvalue()
