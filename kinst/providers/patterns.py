"""Patterns of a probe description, as dtrace(1) has them."""

import fnmatch
import re

GLOB = re.compile(r"[*?\[]")


def is_glob(pattern: str) -> bool:
    """Whether a part of a description is a pattern; an empty one matches everything."""
    return not pattern or GLOB.search(pattern) is not None


def matches(pattern: str, name: str) -> bool:
    """A shell pattern, or anything for an empty one."""
    return not pattern or fnmatch.fnmatchcase(name, _as_python_has_it(pattern))


def regular(pattern: str) -> re.Pattern[str]:
    """The same, for many names."""
    return re.compile(fnmatch.translate(_as_python_has_it(pattern) or "*"))


def _as_python_has_it(pattern: str) -> str:
    return pattern.replace("[^", "[!")
