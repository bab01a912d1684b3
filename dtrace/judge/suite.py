"""Tests of DTrace's public test suite, and whether an outcome passes.

The name of a test says what is expected: ``tst.NAME.d`` runs, ``err.TAG.NAME.d`` is refused with a
tag, ``drp.TAG.NAME.d`` reports drops with a tag.  The expected output may be in ``FILE.out``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dtrace.judge.outcome import Outcome

# A test's name as in the suite's own program: what is expected, and the tag of an error or of drops
NAMES = ((re.compile(r"tst\..*"), 0, ""), (re.compile(r"err\.(D_[A-Z0-9_]+)\..*"), 1, "-x errtags"),
         (re.compile(r"err\..*"), 1, ""), (re.compile(r"drp\.([A-Z0-9_]+)\..*"), 0, "-x droptags"))
# What kdtrace may say before another message
NOTE = re.compile(r"dtrace: `\S+: using the value in ")


@dataclass(frozen=True)
class SuiteTest:
    """A test of the suite.

    :param name: file name in the suite, such as ``aggs/tst.count.d``.
    :param kind: the test's class: the name of its directory.
    :param status: expected exit status.
    :param tag: expected tag of the message, or "".
    :param options: options for dtrace(1).
    :param output: expected output, or None for any.
    :param errors: expected messages, or None for any.
    :param program: name of the program of its own that the test needs, or "".
    """

    path: Path
    name: str
    kind: str
    status: int
    tag: str
    options: str
    output: str | None
    errors: str | None
    program: str


def tests(directory: Path) -> Iterator[SuiteTest]:
    """Yield the D programs in a directory of the suite that are tests, by name.

    :raises OSError: a file cannot be read.
    """
    for path in sorted(directory.rglob("*.d")):
        found = next(((match, status, options) for name, status, options in NAMES
                      if (match := name.fullmatch(path.name)) is not None), None)
        if found is None or not path.is_file():
            continue
        match, status, options = found
        own = next((name for name in (f"{path.stem}.c", f"{path.stem}.exe")
                    if path.with_name(name).is_file()), "")
        yield SuiteTest(path, str(path.relative_to(directory)), path.parent.name, status,
                        match[1] if options else "", options, _beside(path, "out"),
                        _beside(path, "err"), own)


def _beside(path: Path, suffix: str) -> str | None:
    expected = path.with_name(f"{path.name}.{suffix}")
    return expected.read_text("utf-8", "backslashreplace") if expected.is_file() else None


def why_failed(test: SuiteTest, outcome: Outcome) -> str:
    """Return why an outcome does not pass a test, or "" if it does."""
    if outcome.status is None:
        return "does not end"
    if outcome.status != test.status:
        return f"exit status {outcome.status} instead of {test.status}"
    if test.output is not None and outcome.output != test.output:
        return "other output"
    if test.errors is not None and outcome.errors != test.errors:
        return "other messages"
    first = next((line for line in outcome.errors.splitlines() if not NOTE.match(line)), "")
    if test.tag and not (re.search(rf": \[{test.tag}\] line \d+:", first) if test.status else
                         f"[{test.tag}] " in outcome.errors):
        return f"no {test.tag}"
    return ""
