"""The D libraries: what every program may use without saying so, beside the constants of
``dtrace/d/library.py``.

A library is compiled when a program has one of its names, or another library has; its text is in
``dtrace/library``, the numbers of registers are the architecture's.  A program with ``args`` may
need any translator: it gets all libraries that go with its kernel.
"""

import re
from collections.abc import Iterable
from importlib.resources import files

from dwarf.types import Structure, Types
from emu.guests import FREEBSD

WORD = re.compile(r"[A-Za-z_]\w*")
DEFINED = re.compile(
    r"^(?:inline .*?(\w+)(?:\[.*\])? =|\} (\w+);|translator (\w+)|typedef .* (\w+);)", re.MULTILINE)
SOURCE = re.compile(r"^translator \w+ < (struct \w+) \*", re.MULTILINE)
# These need a kernel's types; one that another needs comes before it.
KERNEL = ("psinfo", "io", "ip", "tcp", "udp")


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
