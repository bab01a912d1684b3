"""Lookup of objects that each architecture defines in a module of its own package."""

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

Part = TypeVar("Part")
NAMES = ("amd64", "arm64", "riscv64")


class Parts(Mapping[str, Part]):
    """Mapping from each architecture to an object that the architecture's package defines.

    A module is imported when its object is looked up.

    :param module: name of the module, with ``{}`` in place of the architecture.
    :param name: name of the object in the module.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getitem__(self, arch: str) -> Part:
        if arch not in NAMES:
            raise KeyError(arch)
        module = importlib.import_module(self._module.format(arch))
        return cast(Part, getattr(module, self._name))

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)
