"""A probe that the guest's source declares, and the places in its code where it may fire."""

from dataclasses import dataclass

from emu.errors import KinstError


class StaticProbeError(KinstError):
    """What the kernel declares of its static probes cannot be read."""


@dataclass(frozen=True)
class Argument:
    """:param type: in C, as the kernel has it; ``translated``: what D makes of it, or empty."""

    type: str
    translated: str


@dataclass(frozen=True)
class Tracepoint:
    """:param address: of the instruction that does nothing and is patched to a jump to ``target``,
    where the arguments are made and ``sdt_probe`` is called.
    """

    address: int
    target: int


@dataclass(frozen=True)
class StaticProbe:
    provider: str
    module: str
    function: str
    name: str
    arguments: tuple[Argument, ...]
    tracepoints: tuple[Tracepoint, ...]
