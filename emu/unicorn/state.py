"""The state of the Unicorn machine at one moment, and snapshots of it in memory."""

from dataclasses import dataclass, field
from typing import Any

from emu.unicorn.guest_memory import MemoryImage


@dataclass(frozen=True)
class MachineState:
    """Complete machine state except memory; JSON-compatible except for the console's bytes.

    :param cpu: the state of the current CPU, to which ``waiting`` and ``arrived`` also refer.
    :param arrived: whether everything due at the current instruction was done (``Engine.arrive``).
    :param waiting: whether the CPU has executed a wait instruction and was not woken.
    :param stop: reason why the run ends at the next canonical block start, as (StopReason name,
        detail), or None if the run does not end there.
    :param panic: console bytes and instruction limit of the panic in progress, or None.
    :param turns: the other CPUs and the turn (``Schedule.state``), or None for a single CPU.
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
    """A complete machine state, including RAM, that is saved in host memory."""

    state: MachineState
    memory: MemoryImage
    patches: int = 0  # serial number of the set of breakpoints in memory, or 0 without breakpoints
