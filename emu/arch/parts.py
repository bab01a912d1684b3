"""What a room has for each architecture: a name in a module of that architecture's folder."""

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

Part = TypeVar("Part")
NAMES = ("amd64", "arm64", "riscv64")


class Parts(Mapping[str, Part]):
    """By the architecture's name; a module is loaded when its part is asked for.

    :param module: where it is, with ``{}`` for the architecture.
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
