"""What can stand where the cursor is: members of the kernel's structures, its functions, types and
probes.

Only values that show the guest's memory are looked into: nothing is called for it.
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

MOST = 1000  # completions
MEMBER = re.compile(r"([A-Za-z_]\w*)((?:\.\w+|\[-?\d+\]|\[\"\w+\"\]|\['\w+'\])*)\.(\w*)$")
PART = re.compile(r"\.(\w+)|\[(-?\d+)\]|\[[\"'](\w+)[\"']\]")
STRING = re.compile(r"(\w+)\(\s*[fr]?[\"']([^\"']*)$")
LAST = re.compile(r"[\w.]*$")
FUNCTION, VARIABLE, TYPE, TAG, PROBE = "function", "variable", "type", "tag", "probe"
#: what the first string of a call names; a magic's word
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
    """:param fragment: what is there already, and is replaced."""

    fragment: str
    found: Sequence[str]


class KernelNames:
    """The names of a kernel, sorted."""

    def __init__(self, kernel: KernelFile) -> None:
        self._kernel = kernel

    @cached_property
    def functions(self) -> Sequence[str]:
        return sorted(self._kernel.functions())

    @cached_property
    def variables(self) -> Sequence[str]:
        return sorted(self._kernel.image.symbols.names((STT_OBJECT,)))

    @cached_property
    def types(self) -> Sequence[str]:
        try:
            return sorted(set(kernel_types(self._kernel.image, None).names()))
        except KinstError:  # no debug data
            return ()

    @cached_property
    def tags(self) -> Sequence[str]:
        return [name.removeprefix("struct ") for name in self.types if name.startswith("struct ")]


class KernelCompletion:
    """:param names: the user's namespace."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._user = names
        self._known: tuple[KernelFile, KernelNames] | None = None

    def complete(self, line: str) -> Completions | None:
        """:param line: up to the cursor; None: nothing of ours stands there."""
        if magic := MAGIC_LINE.match(line):
            kind = MAGIC.get(magic.group(1))
            return None if kind is None else self._named(kind, magic.group(2))
        if string := STRING.search(line):
            kind = NAMED.get(string.group(1))
            return None if kind is None else self._named(kind, string.group(2))
        return self.members(line) or self.probes(line)

    def members(self, line: str) -> Completions | None:
        """Of a structure, behind a dot."""
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
            return None  # what is there so far is nothing that can be read
        return Completions(prefix, found[:MOST])

    def probes(self, line: str) -> Completions | None:
        """Of a function, in a D program."""
        there = PROVIDER.search(line)
        return None if there is None else self._of(FUNCTION, there.group(1))

    def _named(self, kind: str, text: str) -> Completions | None:
        if kind == PROBE:
            return self.probes(text)
        if kind in (TYPE, TAG):  # a type's name may have two words
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
    """The sorted names with that beginning."""
    first = bisect.bisect_left(names, prefix)
    for name in itertools.islice(names, first, first + MOST):
        if not name.startswith(prefix):
            return
        yield name
