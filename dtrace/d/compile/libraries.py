"""The D libraries: what every program may use without saying so, beside the constants of
``dtrace/d/language/library.py``.

A library is compiled when a program has one of its names, or another library has; its text is in
``dtrace/library``, the numbers of registers are the architecture's.  A program with ``args`` may
need any translator: it gets all libraries that go with its kernel.
"""

import re
from collections.abc import Iterable, Sequence
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
MOST, MOST_BYTES = 1000, 1 << 20  # libraries of all directories, bytes of one
# These need a kernel's types; one that another needs comes before it.
KERNEL = ("psinfo", "io", "ip", "tcp", "udp")
# What one of -L may depend on: these, and those whose constants every program has.
THERE = frozenset(f"{name}.d" for name in (
    *KERNEL, "regs", "signal", "errno", "socket"))


def libraries(arch: str, types: bool) -> dict[str, str]:
    """The text of each library, by its name.

    :param types: whether there is a kernel with types.
    """
    here = files("dtrace") / "library"
    found = {name: (here / f"{name}.d").read_text() for name in KERNEL * types}
    found["regs"] = "".join(f"inline int {name} = {n};\n"
                            for name, n in FREEBSD[arch].registers.numbers.items())
    return found


def needed(arch: str, types: Types | None, programs: Iterable[str]) -> dict[str, str]:
    """Those that define a word of a program, and what these need.

    :param types: the kernel's; None: there is none with types.
    """
    words = {word for program in programs for word in WORD.findall(program)}
    known = libraries(arch, types is not None)
    chosen = set()
    for name, text in reversed(known.items()):
        defined = {word for found in DEFINED.findall(text) for word in found if word}
        if words & defined or ("args" in words and types is not None and _fits(text, types)):
            chosen.add(name)
            words |= set(WORD.findall(text))
    return {name: text for name, text in known.items() if name in chosen}


def _fits(text: str, types: Types) -> bool:
    """Whether a library has translators, and the kernel all that they are from."""
    sources = set(SOURCE.findall(text))
    return bool(sources) and all(
        any(isinstance(kind, Structure) for kind in types.named(source)) for source in sources)


def of_directories(directories: Sequence[Path]) -> list[tuple[Path, str]]:
    """The libraries in the directories of -L, each behind those that it depends on; of those of one
    name, the first.

    :raises KinstError: when one cannot be read, depends on what is not there, or on itself.
    """
    found: dict[str, tuple[Path, str]] = {}
    for directory in directories:
        try:
            for path in sorted(directory.iterdir()):
                if path.suffix == ".d" and path.is_file():
                    with path.open("rb") as file:
                        text = file.read(MOST_BYTES + 1)
                    if len(found) >= MOST or len(text) > MOST_BYTES:
                        raise KinstError(f"-L {directory}: more than {MOST} libraries, or one of "
                                         f"more than {MOST_BYTES} bytes")
                    found.setdefault(path.name, (path, text.decode("utf-8", "surrogateescape")))
        except OSError as error:
            raise KinstError(f"-L {directory}: {error.strerror}") from None
    order: dict[str, tuple[Path, str]] = {}
    waiting = dict(found)
    while waiting:
        ready = []
        for name, (path, source) in waiting.items():
            needs = DEPENDS.findall(source)
            for other in needs:
                if other not in found and other not in THERE:
                    raise KinstError(f"{path}: depends on the library '{other}', which is in no "
                                     "directory of -L")
            if all(other in order or other not in found for other in needs):
                ready.append(name)
        if not ready:
            raise KinstError(f"-L: libraries depend on each other in a circle: "
                             f"{', '.join(sorted(waiting))}")
        for name in ready:
            order[name] = waiting.pop(name)
    return list(order.values())
