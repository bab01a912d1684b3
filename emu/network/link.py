"""The link of a network device: Ethernet frames between the guest and what it is connected to."""

from collections import deque
from typing import Any

from emu.machine.events import NEVER

MIN_FRAME, MAX_FRAME = 14, 1518  # sizes in bytes of an Ethernet frame without its checksum
MAX_WAITING = 1 << 18  # maximum number of frames on their way to the guest
MAX_BYTES = 64 << 20  # maximum size of these frames together in bytes


class Link:
    """A link whose other end sends only frames that were scheduled from outside.

    A frame that is scheduled while too many frames are on their way is lost.
    """

    def __init__(self) -> None:
        self._coming: deque[tuple[int, bytes]] = deque()  # (time of arrival, frame), in order
        self._bytes = 0  # size of these frames together

    def send(self, frame: bytes, now: int) -> None:
        """Take a frame from the guest."""

    def schedule(self, when: int, frame: bytes) -> None:
        """Let a frame arrive at the guest at a virtual time in nanoseconds."""
        if len(self._coming) >= MAX_WAITING or self._bytes + len(frame) > MAX_BYTES:
            return
        self._bytes += len(frame)
        place = len(self._coming)
        while place and self._coming[place - 1][0] > when:
            place -= 1
        self._coming.insert(place, (when, frame))

    @property
    def used(self) -> bool:
        """Whether the guest's state may depend on files that the other end offers."""
        return False

    @property
    def next(self) -> int:
        """Virtual time at which ``arrive`` has something to do, or NEVER."""
        return self._coming[0][0] if self._coming else NEVER

    def arrive(self, now: int) -> list[bytes]:
        """Return the frames that have reached the guest by now."""
        arrived = []
        while self._coming and self._coming[0][0] <= now:
            arrived.append(self._coming.popleft()[1])
            self._bytes -= len(arrived[-1])
        return arrived

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-compatible values."""
        return {"coming": [[when, frame.hex()] for when, frame in self._coming]}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``state``; the state may come from an untrusted file.

        :raises ValueError: if the state is invalid.
        :raises KeyError: if a part is missing.
        """
        coming = [(when, bytes.fromhex(frame)) for when, frame in state["coming"]]
        size = sum(len(frame) for _when, frame in coming)
        if (len(coming) > MAX_WAITING or size > MAX_BYTES or sorted(when for when, _frame in coming)
                != [when for when, _frame in coming]
                or not all(type(when) is int and 0 <= when < NEVER
                           and MIN_FRAME <= len(frame) <= MAX_FRAME for when, frame in coming)):
            raise ValueError("the saved state of a network link is invalid")
        self._coming, self._bytes = deque(coming), size
