"""Event queue for virtual time; it runs device timers in a deterministic order."""

import heapq
from collections.abc import Callable

from emu.host.errors import MachineError

NEVER = (1 << 64) - 1
MOST_DUE = 1 << 18  # limit on timer callbacks in one ``run``; only an invalid state exceeds it


class Timer:
    """A device timer with at most one pending deadline.

    Times are virtual nanoseconds.  A snapshot keeps ``when``; the callback belongs to the device.
    """

    def __init__(self, queue: "EventQueue", name: str, callback: Callable[[], None]) -> None:
        self._queue = queue
        self.name = name
        self.callback = callback
        self.when = NEVER

    def set(self, when: int) -> None:
        """Set the deadline to ``when``, replacing any earlier one."""
        self.when = when
        self._queue.changed(self)

    def cancel(self) -> None:
        """Cancel the pending deadline."""
        self.when = NEVER


class EventQueue:
    """The timers of a machine, ordered by deadline and then by name."""

    def __init__(self) -> None:
        self.timers: dict[str, Timer] = {}
        self._heap: list[tuple[int, str]] = []
        self.notify: Callable[[], None] = lambda: None

    def timer(self, name: str, callback: Callable[[], None]) -> Timer:
        """Create a timer; its name must be unique within the machine."""
        if name in self.timers:
            raise ValueError(f"a timer named {name} already exists")
        timer = self.timers[name] = Timer(self, name, callback)
        return timer

    def changed(self, timer: Timer) -> None:
        """Queue a timer whose deadline changed, and call ``notify``."""
        heapq.heappush(self._heap, (timer.when, timer.name))
        self.notify()

    def next(self) -> int:
        """Return the earliest deadline, or NEVER if no timer is set."""
        while self._heap:
            when, name = self._heap[0]
            if self.timers[name].when == when:
                return when
            heapq.heappop(self._heap)
        return NEVER

    def run(self, now: int) -> None:
        """Call the callbacks of all timers that are due at ``now``.

        :raises MachineError: if timers become due again MOST_DUE times, as with a damaged snapshot
            whose deadlines lie far in the past.
        """
        left = MOST_DUE
        while self.next() <= now:
            left -= 1
            if not left:
                raise MachineError(f"timers expired {MOST_DUE} times without virtual time "
                                   "advancing: the machine's state is not valid")
            _when, name = heapq.heappop(self._heap)
            timer = self.timers[name]
            timer.when = NEVER
            timer.callback()

    def state(self) -> dict[str, int]:
        """Return the pending deadlines, keyed by timer name."""
        return {name: t.when for name, t in sorted(self.timers.items()) if t.when != NEVER}

    def restore(self, state: dict[str, int]) -> None:
        """Set all deadlines to those that ``state`` returned."""
        self._heap.clear()
        for name, timer in self.timers.items():
            timer.when = int(state.get(name, NEVER))
            if timer.when != NEVER:
                heapq.heappush(self._heap, (timer.when, name))
        self.notify()
