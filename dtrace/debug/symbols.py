"""Lookup of a kernel's functions and symbols by the names that users give."""

from dtrace.debug.debug_index import debug_index
from dwarf.debug_file import DebugDataError
from emu.elf.image import Image
from emu.elf.symbols import STT_FUNC, STT_GNU_IFUNC, Symbol
from emu.host.errors import KinstError
from emu.host.printable import counted
from kinst.providers.patterns import is_glob, matches


def find_symbol(image: Image, name: str) -> int:
    """Return the address of a symbol.

    :raises KinstError: if the kernel has no symbol with that name.
    """
    symbol = image.symbols.find(name)
    if symbol is None:
        raise KinstError(f"{image.path} has no symbol '{name}'")
    return symbol.address


def find_function(image: Image, name: str) -> Symbol:
    """Return a function or ifunc (a function that returns the address of the function to call).

    :raises KinstError: if the kernel has no such function; the message suggests similar names.
    """
    for symbol in image.symbols.named(name):
        if symbol.kind in (STT_FUNC, STT_GNU_IFUNC):
            return symbol
    copies = _copies(image, name)
    if copies:
        raise KinstError(f"{image.path}: function '{name}' exists only as "
                         f"{counted(copies, 'inline copy')}; probe them with kinst::{name}:entry "
                         f"and :return, or list them with kinst inline {name}")
    advice = (image.symbols.advice(name)
              or "for a function of a module, load the module (--module)")
    raise KinstError(" with ".join((str(image.path), *(one.name for one in image.modules)))
                     + f" has no function '{name}'; {advice}")


def _copies(image: Image, name: str) -> int:
    """Return the number of inline copies of a function, or 0 if the number is unknown."""
    try:
        return len(debug_index(image).copies(name))
    except DebugDataError:
        return 0


def sized_functions(image: Image, name: str) -> list[Symbol]:
    """Return all functions with a given name and a known size.

    :raises KinstError: if there are none.
    """
    find_function(image, name)
    found = [s for s in image.symbols.named(name) if s.kind == STT_FUNC and s.size]
    if not found:
        raise KinstError(f"{image.path}: the size of function '{name}' is unknown")
    return found


def chosen_functions(image: Image, text: str) -> list[Symbol]:
    """Return the functions with a given name, or the functions that match a shell pattern.

    :raises KinstError: if there are none.
    """
    if not text or not is_glob(text):
        return sized_functions(image, text)
    found = {s.address: s for s in image.symbols.functions() if matches(text, s.name)}
    if not found:
        raise KinstError(f"{image.path}: no function matches '{text}'")
    return list(found.values())
