"""Functions and symbols of a kernel by the names that a user gives."""

from dtrace.debug.debug_index import debug_index
from dwarf.debug_file import DebugDataError
from emu.elf.image import Image
from emu.elf.symbols import STT_FUNC, STT_GNU_IFUNC, Symbol
from emu.host.errors import KinstError
from kinst.providers.patterns import is_glob, matches


def find_symbol(image: Image, name: str) -> int:
    """:raises KinstError: when the kernel has none of that name."""
    symbol = image.symbols.find(name)
    if symbol is None:
        raise KinstError(f"{image.path} has no symbol '{name}'")
    return symbol.address


def find_function(image: Image, name: str) -> Symbol:
    """A function, or an ifunc: a function that gives the address of the one to call.

    :raises KinstError: when the kernel has none of that name; says which are like it.
    """
    for symbol in image.symbols.named(name):
        if symbol.kind in (STT_FUNC, STT_GNU_IFUNC):
            return symbol
    copies = _copies(image, name)
    if copies:
        raise KinstError(f"{image.path} has no function '{name}' of its own: it is inline in "
                         f"{copies} places: kinst::{name}:entry and :return probe these, and kinst "
                         f"inline {name} lists them")
    near = image.symbols.similar(name)
    hint = (f"; did you mean {', '.join(near)}?" if near
            else "; a module's are there when it is loaded (--module)")
    raise KinstError(" with ".join((str(image.path), *(one.name for one in image.modules)))
                     + f" has no function '{name}'{hint}")


def _copies(image: Image, name: str) -> int:
    """In how many places a function is inline; 0 where that is not known."""
    try:
        return len(debug_index(image).copies(name))
    except DebugDataError:
        return 0


def sized_functions(image: Image, name: str) -> list[Symbol]:
    """All functions of a name whose code is known to have an end.

    :raises KinstError: when there is none.
    """
    find_function(image, name)
    found = [s for s in image.symbols.named(name) if s.kind == STT_FUNC and s.size]
    if not found:
        raise KinstError(f"{image.path}: '{name}' is no function with a size")
    return found


def chosen_functions(image: Image, text: str) -> list[Symbol]:
    """All functions of a name, or those that a shell pattern matches, as in a probe description.

    :raises KinstError: when there is none.
    """
    if not text or not is_glob(text):
        return sized_functions(image, text)
    found = {s.address: s for s in image.symbols.functions() if matches(text, s.name)}
    if not found:
        raise KinstError(f"{image.path}: no function matches '{text}'")
    return list(found.values())
