"""D libraries: definitions that every program may use without declaring them.

The constants in ``dtrace/d/language/library.py`` are separate and always available.  A library is
compiled when a program, or another library, uses a name that it defines.  The texts are in
``dtrace/library``; the register numbers come from the architecture.  A program that uses ``args``
may need any translator, so it gets all libraries that fit its kernel.  The structures of other
releases may differ: a library that the program does not name is then left out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dwarf.types import Structure, Types
from emu.guests.registry import FREEBSD
from emu.host.errors import KinstError

WORD = re.compile(r"[A-Za-z_]\w*")
DEFINED = re.compile(
    r"^(?:inline .*?(\w+)(?:\[.*\])? =|\} (\w+);|translator (\w+)|typedef .* (\w+);)", re.MULTILINE)
SOURCE = re.compile(r"^translator \w+ < (struct \w+) \*", re.MULTILINE)
DEPENDS = re.compile(r"^\s*#\s*pragma\s+D\s+depends_on\s+library\s+(\S+)", re.MULTILINE)
# maximum number of -L libraries; maximum size of a -L library in bytes
MOST, MOST_BYTES = 1000, 1 << 20
# Libraries that need the kernel's types; each library follows the libraries that it uses.
KERNEL = ("psinfo", "io", "ip", "tcp", "udp")
# Libraries on which -L libraries may depend; some of them contain only built-in constants.
THERE = frozenset(f"{name}.d" for name in (
    *KERNEL, "regs", "signal", "errno", "socket"))


def libraries(arch: str, types: bool) -> dict[str, str]:
    """Return the texts of the built-in libraries, keyed by library name.

    :param types: whether a kernel with types is available.
    """
    here = files("dtrace") / "library"
    texts = {name: (here / f"{name}.d").read_text() for name in KERNEL * types}
    texts["regs"] = "".join(f"inline int {name} = {n};\n"
                            for name, n in FREEBSD[arch].registers.numbers.items())
    return texts


@dataclass(frozen=True)
class Library:
    """A built-in library that a program needs.

    :param named: whether the program uses a name that the library defines, directly or through
        other libraries; otherwise, its ``args`` may need a translator of the library.
    """

    name: str
    text: str
    named: bool


def needed(arch: str, types: Types | None, programs: Iterable[str]) -> list[Library]:
    """Return the libraries that programs need, directly or through other libraries.

    :param types: the kernel's types; None if they are not available.
    """
    named = {word for program in programs for word in WORD.findall(program)}
    args = "args" in named and types is not None
    words = set(named)
    chosen = []
    for name, text in reversed(libraries(arch, types is not None).items()):
        defined = {word for found in DEFINED.findall(text) for word in found if word}
        if words & defined or (args and types is not None and _fits(text, types)):
            chosen.append(Library(name, text, bool(named & defined)))
            words |= set(WORD.findall(text))
            named |= set(WORD.findall(text)) if named & defined else set()
    return chosen[::-1]


def _fits(text: str, types: Types) -> bool:
    """Return whether a library has translators and the kernel has all types that they translate."""
    sources = set(SOURCE.findall(text))
    return bool(sources) and all(
        any(isinstance(kind, Structure) for kind in types.named(source)) for source in sources)


def of_directories(directories: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the libraries in the -L directories, each after the libraries that it depends on.

    If several libraries have the same name, only the first is returned.

    :raises KinstError: if a library cannot be read, depends on a library that does not exist, or
        depends on itself.
    """
    by_name: dict[str, tuple[Path, str]] = {}
    for directory in directories:
        try:
            for path in sorted(directory.iterdir()):
                if path.suffix == ".d" and path.is_file():
                    with path.open("rb") as file:
                        text = file.read(MOST_BYTES + 1)
                    if len(by_name) >= MOST:
                        raise KinstError(f"-L {directory}: too many libraries; at most {MOST} are "
                                         "allowed")
                    if len(text) > MOST_BYTES:
                        raise KinstError(f"{path}: too large for a library; the limit is "
                                         f"{MOST_BYTES} bytes")
                    by_name.setdefault(path.name, (path, text.decode("utf-8", "surrogateescape")))
        except OSError as error:
            raise KinstError(f"-L {directory}: {error.strerror}") from None
    order: dict[str, tuple[Path, str]] = {}
    waiting = dict(by_name)
    while waiting:
        ready = []
        for name, (path, source) in waiting.items():
            needs = DEPENDS.findall(source)
            for other in needs:
                if other not in by_name and other not in THERE:
                    raise KinstError(f"{path}: depends on the library '{other}', which no -L "
                                     "directory contains")
            if all(other in order or other not in by_name for other in needs):
                ready.append(name)
        if not ready:
            raise KinstError(f"-L: circular dependency between libraries: "
                             f"{', '.join(sorted(waiting))}")
        for name in ready:
            order[name] = waiting.pop(name)
    return list(order.values())
