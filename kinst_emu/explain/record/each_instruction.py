"""Each instruction of a run looked at, before it is executed."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import unicorn

from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason, Until
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explain.record.kept_words import KeptWords


class EachInstruction(ABC):
    """Calls ``look`` before each instruction of a run.

    ``over``: what is wanted has been seen, and nothing more is looked at; ``failure``: what
    ``look`` has raised.
    """

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        self.over = False
        self.failure: KinstError | None = None

    @abstractmethod
    def look(self, address: int) -> None:
        """At an instruction."""

    @contextlib.contextmanager
    def each_instruction(self, stores: Callable[..., None] | None = None) -> Iterator[None]:
        """Whatever runs meanwhile is looked at.

        :param stores: is called before each store, as Unicorn calls a hook.
        """
        machine = self.machine
        hooks = [machine.uc.hook_add(unicorn.UC_HOOK_CODE, self._executed, begin=1, end=0)]
        if stores is not None:
            hooks.append(machine.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, stores, begin=1, end=0))
        machine.engine.flush_translations()  # blocks that are known have no such stop
        try:
            yield
        finally:
            for hook in hooks:
                machine.engine.unhook(hook)

    def watch(self, addresses: Iterable[int], instructions: int) -> Stop:
        """Run.

        :param addresses: of words whose stores ``kept`` tells of.
        :param instructions: of the machine, at which it ends at the latest.
        :raises KinstError: what ``look`` has raised.
        """
        machine, self.failure = self.machine, None
        self.kept = KeptWords(machine, addresses)
        try:
            with self.each_instruction():
                stop = machine.run(Until(instructions=instructions))
        finally:
            self.kept.close()
        if self.failure is not None:
            raise self.failure
        if stop.reason is StopReason.INTERRUPTED and not self.over:
            raise KeyboardInterrupt
        return stop

    def _executed(self, _uc: unicorn.Uc, address: int, _size: int, _data: object) -> None:
        """Unicorn's hook: look at the instruction."""
        self.executed(address)

    def executed(self, address: int) -> None:
        """At an instruction, or where a run has ended before one."""
        if self.failure is None and not self.over:
            try:
                self.look(address)
            except KinstError as error:
                # Unicorn swallows what a hook raises, and the machine would never stop.
                self.failure = error
                self.failed(address)

    def failed(self, address: int) -> None:
        """``look`` has raised: what becomes of the run."""
        self.machine.request_stop(Stop(StopReason.INTERRUPTED, address))
