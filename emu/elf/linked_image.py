"""A kernel with modules behind it, as one image: what the boot loader hands over.

Dependencies are found by the names that modules have for each other (MODULE_DEPEND of
sys/module.h), among those given and those that lie beside the kernel.
"""

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from emu.elf.image import Image
from emu.elf.kernel_module import PAGE, Module, ModuleFile
from emu.elf.reader import read_file
from emu.elf.symbols import KERNEL, KINDS, Symbol, SymbolTable
from emu.host.errors import ImageError

MAX_MODULES = 256
SUFFIX = ".ko"
VERSION = "osreldate"  # int: __FreeBSD_version of the kernel


class LinkedSymbols(SymbolTable):
    """The symbols of a kernel and its modules; the kernel's first.

    :param modules: at their places, by address.
    """

    def __init__(self, kernel: SymbolTable, modules: Sequence[Module]) -> None:
        super().__init__(b"", b"")
        self._kernel, self._modules = kernel, modules
        self._tables = [kernel, *(module.symbols for module in modules)]

    @property
    def tables(self) -> tuple[bytes, bytes]:
        """The kernel's alone: a module's are in its file."""
        return self._kernel.tables

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    def named(self, name: str) -> list[Symbol]:
        return [symbol for table in self._tables for symbol in table.named(name)]

    def find(self, name: str) -> Symbol | None:
        found = (table.find(name) for table in self._tables)
        return next((symbol for symbol in found if symbol is not None), None)

    def similar(self, name: str) -> list[str]:
        near = {text for table in self._tables for text in table.similar(name)}
        return difflib.get_close_matches(name, near, 3, 0.8)

    def names(self, kinds: Collection[int] = KINDS) -> set[str]:
        return set().union(*(table.names(kinds) for table in self._tables))

    def functions(self) -> Iterator[Symbol]:
        for table in self._tables:
            yield from table.functions()

    def object_at(self, address: int) -> Symbol | None:
        return self._at(address).object_at(address)

    def _at(self, address: int) -> SymbolTable:
        for module in self._modules:
            if module.address <= address < module.end:
                return module.symbols
        return self._kernel

    def function_at(self, address: int) -> Symbol | None:
        return self._at(address).function_at(address)

    def label_at(self, address: int) -> Symbol | None:
        return self._at(address).label_at(address)


def with_modules(image: Image, paths: Sequence[Path]) -> Image:
    """The image with modules, and with those that they depend on, in the order of loading.

    :raises ImageError: when one is of another kernel or architecture, or a dependency is missing.
    """
    if not paths:
        return image
    files = _ordered(image, [ModuleFile(read_file(path)) for path in paths])
    for file in files:
        if file.relocatable and not file.arch.relocatable_modules:
            raise ImageError(f"{file.path}: is a relocatable file, and kernels for "
                             f"{file.arch.name} load shared objects: link it with ld -shared")
    kernel = image.symbols.globals({name for file in files for name in file.undefined})
    at = max(segment.virtual_end for segment in image.segments)
    placed: list[Module] = []
    for file in files:
        at = at + PAGE - 1 & -PAGE
        outside = {}
        for name, optional in file.undefined.items():
            found = kernel.get(name)
            for module in placed:
                found = module.globals.get(name) if found is None else found
            if found is not None:
                outside[name] = found
            elif not optional:
                raise ImageError(
                    f"{file.path}: is of another kernel: it needs '{name}', which neither "
                    f"{image.path} has nor a module that it depends on")
        placed.append(Module(file, at, outside))
        at += file.size
    return replace(image, symbols=LinkedSymbols(image.symbols, placed), modules=tuple(placed))


def _ordered(image: Image, wanted: list[ModuleFile]) -> list[ModuleFile]:
    """Each behind those that it depends on."""
    ordered: list[ModuleFile] = []
    version = _version(image)
    known = list(wanted)
    for file in wanted:
        if [other.name for other in wanted].count(file.name) > 1:
            raise ImageError(f"{file.path}: two modules of the name {file.name}; give one")

    def add(file: ModuleFile, above: tuple[str, ...]) -> None:
        if file in ordered:
            return
        if file.machine != image.machine:
            raise ImageError(f"{file.path}: made for {file.machine}, the kernel {image.path} for "
                             f"{image.machine}")
        if file.name in above or len(ordered) > MAX_MODULES:
            raise ImageError(f"{file.path}: depends on itself, through {', '.join(above)}")
        for dependency in file.depends:
            if dependency.name == KERNEL:
                if version is not None and not dependency.least <= version <= dependency.last:
                    raise ImageError(
                        f"{file.path}: is for kernels of version {dependency.least} to "
                        f"{dependency.last}; {image.path} is of version {version}")
                continue
            other = _provider(dependency.name, known, image.path.parent, file.path.parent)
            if other is None:
                raise ImageError(
                    f"{file.path}: depends on the module '{dependency.name}', which is not beside "
                    f"{image.path}; give it with --module")
            if other not in known:
                known.append(other)
            if other is not file:
                add(other, (*above, file.name))
        ordered.append(file)

    for file in wanted:
        add(file, ())
    return ordered


def _version(image: Image) -> int | None:
    symbol = image.symbols.find(VERSION)
    if symbol is None:
        return None
    try:
        return int.from_bytes(image.virtual_to_file(symbol.address, 4), "little")
    except ImageError:
        return None


def _provider(name: str, known: list[ModuleFile], *directories: Path) -> ModuleFile | None:
    """The module of a name: a known one, or a file of that name, or one that has it inside."""
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
                continue  # not asked for
    return None
