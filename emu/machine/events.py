"""The queue of virtual time: what happens when, in an order that depends on nothing else."""

import heapq
from collections.abc import Callable

from emu.host.errors import MachineError

NEVER = (1 << 64) - 1
MOST_DUE = 1 << 18


class Timer:
    """One alarm of a device; at most one pending time.

    Times are virtual nanoseconds.  A snapshot keeps ``when``; the callback belongs to the device.
    """

    def __init__(self, queue: "EventQueue", name: str, callback: Callable[[], None]) -> None:
        self._queue = queue
        self.name = name
        self.callback = callback
        self.when = NEVER

    def set(self, when: int) -> None:
        """Ring at ``when``, instead of at any time set before."""
        self.when = when
        self._queue.changed(self)

    def cancel(self) -> None:
        self.when = NEVER


class EventQueue:
    """All timers of a machine.  Timers of one instant ring in the order of their names."""

    def __init__(self) -> None:
        self.timers: dict[str, Timer] = {}
        self._heap: list[tuple[int, str]] = []
        self.notify: Callable[[], None] = lambda: None

    def timer(self, name: str, callback: Callable[[], None]) -> Timer:
        """Make a timer; names are unique in a machine."""
        if name in self.timers:
            raise ValueError(f"two timers named {name}")
        timer = self.timers[name] = Timer(self, name, callback)
        return timer

    def changed(self, timer: Timer) -> None:
        heapq.heappush(self._heap, (timer.when, timer.name))
        self.notify()

    def next(self) -> int:
        """When the next timer rings, or NEVER."""
        while self._heap:
            when, name = self._heap[0]
            if self.timers[name].when == when:
                return when
            heapq.heappop(self._heap)
        return NEVER

    def run(self, now: int) -> None:
        """Ring everything due.

        :raises MachineError: for timers that are due again and again: of a state from a file, whose
            clock is far behind them.
        """
        left = MOST_DUE
        while self.next() <= now:
            left -= 1
            if not left:
                raise MachineError(f"timers are due {MOST_DUE} times at once: no state of "
                                   "a machine")
            _when, name = heapq.heappop(self._heap)
            timer = self.timers[name]
            timer.when = NEVER
            timer.callback()

    def state(self) -> dict[str, int]:
        return {name: t.when for name, t in sorted(self.timers.items()) if t.when != NEVER}

    def restore(self, state: dict[str, int]) -> None:
        self._heap.clear()
        for name, timer in self.timers.items():
            timer.when = int(state.get(name, NEVER))
            if timer.when != NEVER:
                heapq.heappush(self._heap, (timer.when, name))
        self.notify()
