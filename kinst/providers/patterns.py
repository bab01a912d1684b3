"""Patterns in probe descriptions, as in dtrace(1)."""

import fnmatch
import re

GLOB = re.compile(r"[*?\[]")


def is_glob(pattern: str) -> bool:
    """Return whether a part of a description is a pattern; an empty part matches everything."""
    return not pattern or GLOB.search(pattern) is not None


def matches(pattern: str, name: str) -> bool:
    """Return whether a shell pattern matches a name; an empty pattern matches every name."""
    return not pattern or fnmatch.fnmatchcase(name, _as_python_has_it(pattern))


def regular(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a shell pattern, to match many names."""
    return re.compile(fnmatch.translate(_as_python_has_it(pattern) or "*"))


def _as_python_has_it(pattern: str) -> str:
    return pattern.replace("[^", "[!")
