"""A kernel and its modules as one image, with the boot loader's layout.

Modules name their dependencies with MODULE_DEPEND (sys/module.h).  Dependencies are looked up among
the given modules, then in the directories of the kernel and of the module that needs them.
"""

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from emu.elf.image import Image
from emu.elf.kernel_module import PAGE, Module, ModuleFile
from emu.elf.reader import read_file
from emu.elf.symbols import FUNCTIONS, KERNEL, KINDS, Symbol, SymbolTable
from emu.host.errors import ImageError

MAX_MODULES = 256
SUFFIX = ".ko"
VERSION = "osreldate"  # kernel variable (C int) that contains its __FreeBSD_version


class LinkedSymbols(SymbolTable):
    """Symbols of a kernel and its modules; the symbols of the kernel come first.

    :param modules: modules with their addresses, sorted by address.
    """

    def __init__(self, kernel: SymbolTable, modules: Sequence[Module]) -> None:
        super().__init__(b"", b"", stripped=kernel.stripped)
        self._kernel, self._modules = kernel, modules
        self._tables = [kernel, *(module.symbols for module in modules)]

    @property
    def tables(self) -> tuple[bytes, bytes]:
        """Raw symbol and string tables of the kernel; each module's tables are in its own file."""
        return self._kernel.tables

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    def named(self, name: str) -> list[Symbol]:
        """Return all symbols with the given name, in the kernel and in its modules."""
        return [symbol for table in self._tables for symbol in table.named(name)]

    def find(self, name: str) -> Symbol | None:
        """Return the first symbol with the given name, or None."""
        symbols = (table.find(name) for table in self._tables)
        return next((symbol for symbol in symbols if symbol is not None), None)

    def similar(self, name: str, kinds: Collection[int] = FUNCTIONS) -> list[str]:
        """Return up to three names that resemble the given name.

        :param kinds: types of the symbols (``STT_`` numbers).
        """
        near = {text for table in self._tables for text in table.similar(name, kinds)}
        return difflib.get_close_matches(name, near, 3, 0.8)

    def names(self, kinds: Collection[int] = KINDS) -> set[str]:
        """Return the names of all symbols of the given types (``STT_`` numbers)."""
        return set().union(*(table.names(kinds) for table in self._tables))

    def functions(self) -> Iterator[Symbol]:
        """Yield all functions with a nonzero size, beginning with those of the kernel."""
        for table in self._tables:
            yield from table.functions()

    def object_at(self, address: int) -> Symbol | None:
        """Return the variable whose range contains an address, or None."""
        return self._at(address).object_at(address)

    def _at(self, address: int) -> SymbolTable:
        for module in self._modules:
            if module.address <= address < module.end:
                return module.symbols
        return self._kernel

    def function_at(self, address: int) -> Symbol | None:
        """Return the function whose range contains an address, or None."""
        return self._at(address).function_at(address)

    def label_at(self, address: int) -> Symbol | None:
        """Return the nearest function or label at or below an address, or None, as for one file."""
        return self._at(address).label_at(address)

    def gap_at(self, address: int) -> int:
        """Return the start of the code without a name around an address, as for one file."""
        return self._at(address).gap_at(address)

    def entry_at(self, address: int, names: Collection[str]) -> Symbol | None:
        """Return the symbol around an address if its name is one of the given names."""
        return self._at(address).entry_at(address, names)


def with_modules(image: Image, paths: Sequence[Path]) -> Image:
    """Return a kernel image with modules and their dependencies added, in loading order.

    :raises ImageError: if a module is for another kernel or architecture, or a dependency is
        missing.
    """
    if not paths:
        return image
    files = _ordered(image, [ModuleFile(read_file(path)) for path in paths])
    for file in files:
        if file.relocatable and not file.arch.relocatable_modules:
            raise ImageError(f"{file.path}: is a relocatable file, but kernels for "
                             f"{file.arch.name} load shared objects; link it with ld -shared")
    kernel = image.symbols.globals({name for file in files for name in file.undefined})
    at = max(segment.virtual_end for segment in image.segments)
    placed: list[Module] = []
    for file in files:
        at = at + PAGE - 1 & -PAGE
        outside = {}
        for name, optional in file.undefined.items():
            address = kernel.get(name)
            for module in placed:
                address = module.globals.get(name) if address is None else address
            if address is not None:
                outside[name] = address
            elif not optional:
                raise ImageError(
                    f"{file.path}: built for a different kernel: the symbol '{name}' is defined "
                    f"neither by {image.path} nor by a module loaded earlier")
        placed.append(Module(file, at, outside))
        at += file.size
    return replace(image, symbols=LinkedSymbols(image.symbols, placed), modules=tuple(placed))


def _ordered(image: Image, wanted: list[ModuleFile]) -> list[ModuleFile]:
    """Return the modules and their dependencies, each after the modules that it depends on."""
    ordered: list[ModuleFile] = []
    version = version_of(image)
    known = list(wanted)
    for file in wanted:
        if [other.name for other in wanted].count(file.name) > 1:
            raise ImageError(f"{file.path}: two modules are named {file.name}; give only one")

    def add(file: ModuleFile, above: tuple[str, ...]) -> None:
        if file in ordered:
            return
        if file.machine != image.machine:
            raise ImageError(f"{file.path}: made for {file.machine}, but the kernel {image.path} "
                             f"is for {image.machine}")
        if file.name in above:
            circle = (*above[above.index(file.name) :], file.name)
            raise ImageError(f"{file.path}: circular dependency: {' -> '.join(circle)}")
        if len(ordered) + len(above) >= MAX_MODULES:
            raise ImageError(f"{file.path}: too many modules; at most {MAX_MODULES} are allowed")
        for dependency in file.depends:
            if dependency.name == KERNEL:
                if version is not None and not dependency.least <= version <= dependency.last:
                    raise ImageError(
                        f"{file.path}: is for kernels of version {dependency.least} to "
                        f"{dependency.last}, but {image.path} has version {version}")
                continue
            other = _provider(dependency.name, known, image.path.parent, file.path.parent)
            if other is None:
                raise ImageError(
                    f"{file.path}: depends on the module '{dependency.name}', which was not found "
                    f"next to {image.path}; specify its file with --module")
            if other not in known:
                known.append(other)
            if other is not file:
                add(other, (*above, file.name))
        ordered.append(file)

    for file in wanted:
        add(file, ())
    return ordered


def version_of(image: Image) -> int | None:
    """Return a FreeBSD kernel's ``__FreeBSD_version``, or None if the kernel does not say it."""
    symbol = image.symbols.find(VERSION)
    if symbol is None:
        return None
    try:
        return int.from_bytes(image.virtual_to_file(symbol.address, 4), "little")
    except ImageError:
        return None


def _provider(name: str, known: list[ModuleFile], *directories: Path) -> ModuleFile | None:
    """Find a module in the known files, then in the directories, by file name or module name."""
    for file in known:
        if name in file.provides or file.name == name + SUFFIX:
            return file
    for directory in dict.fromkeys(directories):
        path = directory / (name + SUFFIX)
        if path.is_file():
            return ModuleFile(read_file(path))
    for directory in dict.fromkeys(directories):
        for path in sorted(directory.glob("*" + SUFFIX))[:MAX_MODULES]:
            try:
                file = ModuleFile(read_file(path))
                if name.encode() in bytes(file.data) and name in file.provides:
                    return file
            except ImageError:
                continue  # ignore unusable files that the user did not ask for
    return None
