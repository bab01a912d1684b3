"""A probe that the guest's source declares, and the places in its code where it may fire."""

from dataclasses import dataclass

from emu.host.errors import KinstError


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
class CallTable:
    """A table of system calls: entries of ``size`` bytes from ``base`` on."""

    base: int
    size: int
    count: int


@dataclass(frozen=True)
class SystemCall:
    """:param function: the kernel's that carries it out, whose arguments' types are the call's.
    :param returns: of where it has returned, not of where it begins.
    """

    table: CallTable
    index: int
    function: str
    returns: bool


@dataclass(frozen=True)
class StaticProbe:
    """:param call: the system call that it is of, which has no tracepoint of its own."""

    provider: str
    module: str
    function: str
    name: str
    arguments: tuple[Argument, ...]
    tracepoints: tuple[Tracepoint, ...]
    call: SystemCall | None = None

    @property
    def text(self) -> str:
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"
