"""Static probes that a guest kernel declares, and the instructions at which they can fire."""

from dataclasses import dataclass
from typing import NamedTuple

from emu.host.errors import KinstError


class StaticProbeError(KinstError):
    """Error in the kernel's declarations of static probes."""


class Argument(NamedTuple):
    """An argument of a static probe.

    :param type: C type of the argument in the kernel.
    :param translated: type that D translates it to; empty: no translation.
    """

    type: str
    translated: str


class Tracepoint(NamedTuple):
    """An instruction of the kernel at which a static probe can fire.

    :param address: address of a no-op instruction, which is patched to a jump to ``target``.
    :param target: address of the code that prepares the arguments and calls ``sdt_probe``.
    """

    address: int
    target: int


@dataclass(frozen=True)
class CallTable:
    """A system call table: ``count`` entries of ``size`` bytes, starting at ``base``."""

    base: int
    size: int
    count: int


@dataclass(frozen=True)
class SystemCall:
    """A system call, whose probe fires when the call begins or returns.

    :param function: kernel function that implements the call, with the same argument types.
    :param returns: whether the probe fires when the call returns instead of when it begins.
    """

    table: CallTable
    index: int
    function: str
    returns: bool


class Allocation(NamedTuple):
    """Allocating or freeing memory of a type.

    :param kind: address of the type's structure.
    :param function: kernel function that counts it.
    """

    kind: int
    function: str


class StaticProbe(NamedTuple):
    """A static probe that the kernel or a program declares.

    :param call: system call of the probe, which then has no tracepoints.
    :param allocation: what the probe counts, if it counts allocations; it then has no tracepoints.
    :param attributes: stability of a program's provider, modules, functions, names and arguments,
        three numbers each (``dwarf/dof.py``); empty: that of the kernel's providers.
    """

    provider: str
    module: str
    function: str
    name: str
    arguments: tuple[Argument, ...]
    tracepoints: tuple[Tracepoint, ...]
    call: SystemCall | None = None
    allocation: Allocation | None = None
    attributes: tuple[tuple[int, int, int], ...] = ()

    @property
    def text(self) -> str:
        """Name of the probe as ``provider:module:function:name``."""
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"
