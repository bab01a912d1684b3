"""What the machine on Unicorn was at one moment, and what of it is kept in memory."""

from dataclasses import dataclass, field
from typing import Any

from emu.unicorn.guest_memory import MemoryImage


@dataclass(frozen=True)
class MachineState:
    """Everything of a machine but its memory; JSON-able but for the console's bytes.

    :param cpu: of the one whose turn it is; ``waiting`` and ``arrived`` are its, too.
    :param arrived: what is due at the present instruction was done (``Engine.arrive``).
    :param waiting: the CPU has executed a wait instruction, and nothing has woken it.
    :param stop: why the run is to end at the next canonical block start: (name of a StopReason,
        detail); None: it is not.
    :param panic: (bytes the console had said, instructions at which patience ends) of a panic that
        has begun; None: there is none.
    :param turns: the other CPUs, and the turn (``Schedule.state``); None: there is one CPU.
    """

    cpu: dict[str, Any]
    devices: dict[str, Any]
    timers: dict[str, int]
    instructions: int
    canonical: int
    skew: int
    arrived: bool
    waiting: bool
    stop: tuple[str, str] | None
    panic: tuple[int, int] | None
    console: bytes
    turns: dict[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Snapshot:
    """A state kept in memory."""

    state: MachineState
    memory: MemoryImage
    patches: int = 0  # which set of breakpoints was in memory; 0: none
