"""Completion of structure members and of a kernel's functions, types and probes.

Only values that show guest memory are inspected; completion calls no other code.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dtrace.debug.kernel_types import kernel_types
from dwarf.values import CArray, CPointer, CStruct
from emu.elf.symbols import STT_OBJECT
from emu.host.errors import KinstError
from kinst_emu.api.kernel_file import KernelFile

MOST = 1000  # maximum number of completions
MEMBER = re.compile(r"([A-Za-z_]\w*)((?:\.\w+|\[-?\d+\]|\[\"\w+\"\]|\['\w+'\])*)\.(\w*)$")
PART = re.compile(r"\.(\w+)|\[(-?\d+)\]|\[[\"'](\w+)[\"']\]")
STRING = re.compile(r"(\w+)\(\s*[fr]?[\"']([^\"']*)$")
LAST = re.compile(r"[\w.]*$")
FUNCTION, VARIABLE, TYPE, TAG, PROBE = "function", "variable", "type", "tag", "probe"
#: kind of name that the first string argument of a function contains, keyed by function name
NAMED = {"call": FUNCTION, "evaluate": FUNCTION, "run": FUNCTION, "disas": FUNCTION,
         "instructions": FUNCTION, "prototype": FUNCTION, "symbol": FUNCTION, "explain": FUNCTION,
         "probe": PROBE, "variable": VARIABLE, "struct": TAG, "value": TYPE, "layout": TYPE,
         "who_wrote": VARIABLE}
MAGIC = {"disas": FUNCTION, "explain": FUNCTION, "layout": TYPE, "who_wrote": VARIABLE,
         "probe": PROBE}
MAGIC_LINE = re.compile(r"\s*%(\w+)\s+(.*)$", re.DOTALL)
PROVIDER = re.compile(r"(?:fbt|kinst)(?::\w*:|::)(\w*)$")


@dataclass(frozen=True)
class Completions:
    """Completions of the text before the cursor.

    :param fragment: text that a completion replaces.
    """

    fragment: str
    found: Sequence[str]


class KernelNames:
    """Sorted names of a kernel's functions, variables, types and structures."""

    def __init__(self, kernel: KernelFile) -> None:
        self._kernel = kernel

    @cached_property
    def functions(self) -> Sequence[str]:
        """Names of the kernel's functions."""
        return sorted(self._kernel.functions())

    @cached_property
    def variables(self) -> Sequence[str]:
        """Names of the kernel's variables."""
        return sorted(self._kernel.image.symbols.names((STT_OBJECT,)))

    @cached_property
    def types(self) -> Sequence[str]:
        """Names of the kernel's types, or an empty tuple without debug data."""
        try:
            return sorted(set(kernel_types(self._kernel.image, None).names()))
        except KinstError:  # The kernel has no debug data.
            return ()

    @cached_property
    def tags(self) -> Sequence[str]:
        """Tags of the kernel's structures."""
        return [name.removeprefix("struct ") for name in self.types if name.startswith("struct ")]


class KernelCompletion:
    """Completer for the names in the user's kernel.

    :param names: the user's namespace.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._user = names
        self._known: tuple[KernelFile, KernelNames] | None = None

    def complete(self, line: str) -> Completions | None:
        """Return the completions at the end of a line, or None where kernel names are not expected.

        :param line: the line up to the cursor.
        """
        if magic := MAGIC_LINE.match(line):
            kind = MAGIC.get(magic.group(1))
            return None if kind is None else self._named(kind, magic.group(2))
        if string := STRING.search(line):
            kind = NAMED.get(string.group(1))
            return None if kind is None else self._named(kind, string.group(2))
        return self.members(line) or self.probes(line)

    def members(self, line: str) -> Completions | None:
        """Return the structure members that complete a line after a dot."""
        expression = MEMBER.search(line)
        if expression is None:
            return None
        name, parts, prefix = expression.groups()
        value: Any = self._user.get(name)
        try:
            for part in PART.finditer(parts):
                member, index, key = part.groups()
                if index and isinstance(value, CPointer | CArray):
                    value = value[int(index)]
                elif not index and isinstance(value, CStruct | CPointer):
                    value = value[member or key]
                else:
                    return None
            if not isinstance(value, CStruct | CPointer):
                return None
            found = sorted(name for name in dir(value) if name.startswith(prefix))
        except (KinstError, AttributeError, IndexError, TypeError):
            return None  # The expression before the dot cannot be evaluated.
        return Completions(prefix, found[:MOST])

    def probes(self, line: str) -> Completions | None:
        """Return the functions that a probe description in a D program can name."""
        match = PROVIDER.search(line)
        return None if match is None else self._of(FUNCTION, match.group(1))

    def _named(self, kind: str, text: str) -> Completions | None:
        if kind == PROBE:
            return self.probes(text)
        if kind in (TYPE, TAG):  # The name of a type may consist of two words.
            return self._of(kind, text)
        fragment = LAST.search(text)
        return self._of(kind, fragment.group() if fragment else "")

    def _of(self, kind: str, prefix: str) -> Completions | None:
        names = self._names()
        if names is None:
            return None
        sources: Mapping[str, Callable[[], Sequence[str]]] = {
            FUNCTION: lambda: names.functions, VARIABLE: lambda: names.variables,
            TYPE: lambda: names.types, TAG: lambda: names.tags}
        return Completions(prefix, list(_beginning(sources[kind](), prefix)))

    def _names(self) -> KernelNames | None:
        kernel = self._user.get("kernel")
        if not isinstance(kernel, KernelFile):
            return None
        if self._known is None or self._known[0] is not kernel:
            self._known = (kernel, KernelNames(kernel))
        return self._known[1]


def _beginning(names: Sequence[str], prefix: str) -> Iterator[str]:
    """Yield the sorted names that start with a prefix."""
    first = bisect.bisect_left(names, prefix)
    for name in itertools.islice(names, first, first + MOST):
        if not name.startswith(prefix):
            return
        yield name
