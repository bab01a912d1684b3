"""What a firing does besides being listed: an action prints lines of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from dtrace.stack import MAX_FRAMES, Stacks
from emu.machine import Machine

Read = Callable[[str], int]


class Action(ABC):
    """What a clause does when its probe fires."""

    @abstractmethod
    def lines(self, read: Read) -> list[str]:
        """What it prints.

        :param read: gives an interrupted register by name.
        """


class Stack(Action):
    """``stack()``: the interrupted instruction and its callers.

    :param frames: how many, at the most.
    """

    def __init__(self, machine: Machine, frames: int) -> None:
        self._stacks, self._frames = Stacks(machine), min(frames, MAX_FRAMES)

    def lines(self, read: Read) -> list[str]:
        return self._stacks.text(read, self._frames)
