"""Code places: the notation that all tools use for instructions in a kernel's code.

A place is ``FUNCTION``, ``FUNCTION+0xHEX``, ``FUNCTION:OFFSET``, ``FILE:LINE``,
``FUNCTION:entry``, ``FUNCTION:return``, an address, ``MODULE`FUNCTION+0xHEX`` as printed by
``stack()``, or a probe, ``kinst:MODULE:FUNCTION:OFFSET`` or ``fbt:MODULE:FUNCTION:NAME``.  A
number is decimal, or hexadecimal with the prefix 0x; a function may be a shell pattern.  An inline
function stands for the entries of all its copies.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dtrace.debug.debug_data import NoSuchFile, Sources
from dtrace.debug.debug_index import debug_index
from dtrace.debug.symbols import chosen_functions, find_function
from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from kinst.code.cold_parts import beginnings
from kinst.code.listing import ProbedInstruction, image_code, instructions
from kinst.providers import copy_ends, fbt, inline
from kinst.providers.kinst_provider import PROVIDER as KINST
from kinst.providers.patterns import is_glob, matches, regular
from kinst.relocation.trap import GuestTrap, trap_of
from kinst.relocation.verdict import ConditionalJump

FORMS = ("FUNCTION+0xHEX, FUNCTION:OFFSET, FILE:LINE, FUNCTION:entry, FUNCTION:return, an address, "
         "or a probe like kinst::FUNCTION:OFFSET")
NUMBER = r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18}"
ADDED = re.compile(rf"(?P<function>[^+]+)\+(?P<offset>{NUMBER})")  # matches FUNCTION+OFFSET
ADDRESS = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
OFFSET = re.compile(rf"(?:(?P<module>[^`:+]*)`)?(?P<name>[^`:+]+)(?:[:+](?P<offset>{NUMBER}))?")
END = re.compile(r"(?:(?P<module>[^`:+]*)`)?(?P<name>[^`:+]+):(?P<end>entry|return)")
LINE = re.compile(r"(?P<file>[^:@]+)[:@](?P<line>[0-9]{1,9})")
FILE = re.compile(r"[./]")  # characters that occur in names of source files but not of functions
MOST = 100_000  # maximum number of instructions that a code place may match


@dataclass(frozen=True)
class CodePlace:
    """An instruction, identified by its function and its offset in the function."""

    function: Symbol
    offset: int

    @property
    def address(self) -> int:
        """The instruction's virtual address."""
        return self.function.address + self.offset

    def __str__(self) -> str:
        return f"{self.function.name}+{self.offset:#x}"


def number_of(text: str) -> int:
    """Parse an offset, which is hexadecimal if it has the prefix 0x, else decimal."""
    return int(text, 16) if ADDRESS.fullmatch(text) else int(text)


def is_line(image: Image, text: str) -> bool:
    """Return whether a text denotes FILE:LINE rather than a function with the same name."""
    match = LINE.fullmatch(text)
    return match is not None and not is_glob(match["file"]) and (
        "@" in text or (FILE.search(match["file"]) is not None
                        and not image.symbols.named(match["file"])))


def code_places(image: Image, text: str) -> list[CodePlace]:
    """Return the instructions that match a code place given as text.

    Of a line with several pieces of code in one function, only the first instruction is returned.

    :raises KinstError: when the text is not a place, or no such place exists.
    """
    places = list(dict.fromkeys(_places(image, text.strip())))
    if not places:
        raise KinstError(f"{text}: not found in the code of {image.path}")
    if len(places) > MOST:
        raise KinstError(f"{text}: matches {len(places)} places; at most {MOST} are allowed")
    return places


def code_place(image: Image, text: str) -> CodePlace:
    """Return the single instruction that matches a code place given as text.

    :raises KinstError: when the text is not a place, or matches none or several.
    """
    places = code_places(image, text)
    if len({place.address for place in places}) > 1:
        shown = ", ".join(str(place) for place in places[:5])
        raise KinstError(f"{text}: matches {len(places)} places; choose one of {shown}"
                         + ", ..." * (len(places) > 5))
    return places[0]


def _places(image: Image, text: str) -> Iterator[CodePlace]:
    parts = text.split(":")
    if len(parts) in (3, 4):
        yield from _probes(image, text, parts)
    elif ADDRESS.fullmatch(text):
        yield _at(image, int(text, 16))
    elif match := END.fullmatch(text):
        yield from _ends(image, match["name"], match["module"] or "", match["end"])
    elif is_line(image, text):
        yield from _line(image, text)
    elif match := OFFSET.fullmatch(text):
        yield from _offsets(image, match["name"], match["module"] or "",
                            number_of(match["offset"] or "0"))
    else:
        raise KinstError(f"'{text[:80]}' is not a place in code; give {FORMS}")


def _at(image: Image, address: int) -> CodePlace:
    function = image.symbols.function_at(address)
    if function is None:
        raise KinstError(f"{address:#x}: no function contains this address")
    return CodePlace(function, address - function.address)


def _probes(image: Image, text: str, parts: list[str]) -> Iterator[CodePlace]:
    provider, module, function, name = [""] * (4 - len(parts)) + parts
    if provider not in ("", KINST, fbt.PROVIDER) or not function:
        raise KinstError(f"{text}: not a place in code; give a kinst or fbt probe of a function, "
                         "e.g. kinst::strlen:4 or fbt::malloc:entry")
    if name in copy_ends.NAMES:
        yield from _ends(image, function, module, name, provider != fbt.PROVIDER)
    elif LINE.fullmatch(function) and not name:
        yield from _line(image, function)
    elif not name and provider != fbt.PROVIDER and (added := ADDED.fullmatch(function)):
        yield from _offsets(image, added["function"], module, number_of(added["offset"]))
    elif re.fullmatch(NUMBER, name) and provider != fbt.PROVIDER:
        yield from _offsets(image, function, module, number_of(name))
    else:
        raise KinstError(f"{text}: the probe name '{name}' must be 'entry', 'return' or, with "
                         "kinst, an offset")


def _functions(image: Image, name: str, module: str) -> list[Symbol]:
    functions = [s for s in chosen_functions(image, name) if matches(module, s.module_name)]
    if not functions:
        raise KinstError(f"{image.path}: the module {module} has no function '{name}'")
    return functions


def _offsets(image: Image, name: str, module: str, offset: int) -> Iterator[CodePlace]:
    functions = _functions(image, name, module)
    inside = [s for s in functions if offset < s.size]
    if not inside:
        raise KinstError(f"{name}+{offset:#x}: {name} ends at offset "
                         f"{max(s.size for s in functions)}")
    yield from (CodePlace(symbol, offset) for symbol in inside)


def table_of(image: Image, function: Symbol) -> list[ProbedInstruction]:
    """Return the instructions of a function, with their verdicts."""
    trap = trap_of(guest_of(image, arch_of(image).name), arch_of(image).name)
    return list(instructions(trap, image_code(image, function), function))


def _ends(image: Image, name: str, module: str, end: str, also_copies: bool = True
          ) -> Iterator[CodePlace]:
    """Yield the instructions that enter functions and inline copies, or that leave functions."""
    trap = trap_of(guest_of(image, arch_of(image).name), arch_of(image).name)
    entries = end == fbt.ENTRY
    copies = list(_copies(image, name)) if also_copies else []
    accept = regular(name).match
    functions = [s for s in (image.symbols.functions() if is_glob(name)
                             else image.symbols.named(name))
                 if s.size and accept(s.name) and matches(module, s.module_name)]
    if not functions and not copies:
        find_function(image, name)
    if not functions and not entries:
        raise KinstError(f"{name}:return: {name} exists only as inline copies; list the ends "
                         f"of these copies with kdtrace -l -n kinst::{name}:return")
    starts = frozenset[int]() if entries else beginnings(image)
    for symbol in functions:
        table = table_of(image, symbol)
        first = fbt.entry(trap, symbol, table)
        ends = [*([first] if first is not None else [])] if entries else [
            i for i in (*fbt.returns(trap, symbol, table), *fbt.leaving(trap, symbol, table))
            if not _strays(image, trap, table, i, starts)]
        yield from (CodePlace(symbol, i.offset) for i in ends)
    for address in copies if entries else ():
        place = _at(image, address)
        if matches(module, place.function.module_name):
            yield place


def _strays(image: Image, trap: GuestTrap, table: list[ProbedInstruction],
            jump: ProbedInstruction, starts: frozenset[int]) -> bool:
    """Return whether an instruction jumps to an address other than the start of a function.

    In a stripped kernel, code without a name is taken for a static function.
    """
    number = table.index(jump)
    verdict, before = jump.verdict, table[number - 1].verdict if number else None
    target = (verdict.target if isinstance(verdict, ConditionalJump)
              else trap.instructions.jump_target(before, verdict))
    return target is not None and target not in starts and not (
        image.symbols.stripped and image.symbols.function_at(target) is None)


def _copies(image: Image, name: str) -> Iterator[int]:
    try:
        index = debug_index(image)
    except DebugDataError:
        return
    accept, entrances = regular(name).match, inline.Entrances(image)
    names = [one for one in index.names() if accept(one)] if is_glob(name) else [name]
    for one in names:
        yield from (address for copy in index.copies(one) for address in entrances.of(copy))


def _line(image: Image, text: str) -> Iterator[CodePlace]:
    """Yield a source line's first instruction in each function and in each inline copy."""
    match = LINE.fullmatch(text)
    assert match is not None
    file, line = match["file"], int(match["line"])
    try:
        pieces = Sources(image).code(file, line)
    except NoSuchFile:
        if not FILE.search(file):
            find_function(image, file)  # raises an error that suggests similar names
        raise
    index, seen = debug_index(image), set[tuple[int, ...]]()
    for low, _high in sorted(pieces):
        function = image.symbols.function_at(low)
        if function is None:
            continue
        inside = (function.address, *(f.number for f in index.stack(low) if f.inlined))
        if inside not in seen:
            seen.add(inside)
            yield CodePlace(function, low - function.address)
    if not seen:  # the line may consist of calls to inline functions
        for address in sorted(_called(image, index, file, line)):
            seen.add((address,))
            yield _at(image, address)
    if not seen:
        raise KinstError(f"{file}:{line}: the line has no code"
                         + _nearest(image, file, line))


def _called(image: Image, index: DebugIndex, file: str, line: int) -> Iterator[int]:
    """Yield the entry addresses of the inline copies that replace calls in a source line."""
    sources, entrances = Sources(image), inline.Entrances(image)
    for copy in index.called_at(line):
        path = sources.call(index, copy).rpartition(":")[0]
        if copy.pieces and (path == file or path.endswith("/" + file)):
            yield from entrances.of(copy)


def _nearest(image: Image, file: str, line: int) -> str:
    """Return the part of an error message that names the nearest lines with code."""
    sources = Sources(image)
    near = [str(one) for step in (-1, 1) for one in
            [next((line + step * n for n in range(1, NEAR) if line + step * n > 0
                   and sources.code(file, line + step * n)), 0)] if one]
    return f"; the nearest lines with code: {' and '.join(near)}" if near else ""


NEAR = 40  # number of lines to search in each direction
