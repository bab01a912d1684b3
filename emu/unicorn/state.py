"""The state of the Unicorn machine at one moment, and snapshots of it in memory."""

from dataclasses import dataclass, field
from typing import Any

from emu.unicorn.guest_memory import MemoryImage


@dataclass(frozen=True)
class MachineState:
    """Complete machine state except memory; JSON-compatible except for the console's bytes.

    :param cpu: the CPU that has the turn; ``waiting`` and ``arrived`` refer to it, too.
    :param arrived: whether everything due at the current instruction was done (``Engine.arrive``).
    :param waiting: whether the CPU has executed a wait instruction and was not woken.
    :param stop: why the run ends at the next canonical block start, as (name of a StopReason,
        detail); None: it does not end there.
    :param panic: console bytes and the instruction limit of a panic in progress; None: no panic.
    :param turns: the other CPUs and the turn (``Schedule.state``); None: there is only one CPU.
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
    """A complete machine state kept in memory, RAM included."""

    state: MachineState
    memory: MemoryImage
    patches: int = 0  # serial number of the breakpoint set in memory; 0: none
