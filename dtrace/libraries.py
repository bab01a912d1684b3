"""The D libraries: what every program may use without saying so, beside the constants of
``dtrace/d/library.py``.

A library is compiled when a program has one of its names; its text is in ``dtrace/library``, the
numbers of registers are the architecture's.
"""

import re
from collections.abc import Iterable
from importlib.resources import files

from emu.guests import FREEBSD

WORD = re.compile(r"[A-Za-z_]\w*")
DEFINED = re.compile(r"^(?:inline .*?(\w+) =|\} (\w+);|translator (\w+))", re.MULTILINE)
KERNEL = ("psinfo",)  # need a kernel's types


def libraries(arch: str, types: bool) -> dict[str, str]:
    """The text of each library, by its name.

    :param types: whether there is a kernel with types.
    """
    here = files("dtrace") / "library"
    found = {name: (here / f"{name}.d").read_text() for name in KERNEL * types}
    found["regs"] = "".join(f"inline int {name} = {n};\n"
                            for name, n in FREEBSD[arch].registers.numbers.items())
    return found


def needed(arch: str, types: bool, programs: Iterable[str]) -> dict[str, str]:
    """Those that define a word of a program."""
    words = {word for program in programs for word in WORD.findall(program)}
    return {name: text for name, text in libraries(arch, types).items()
            if words & {word for found in DEFINED.findall(text) for word in found if word}}
