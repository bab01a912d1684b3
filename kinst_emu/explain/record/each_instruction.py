"""Observation of a run before each of its instructions is executed."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import unicorn

from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason, Until
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explain.record.kept_words import KeptWords


class EachInstruction(ABC):
    """Base class for recorders that examine the machine before each instruction.

    ``over`` is set when the recording is finished, and ``look`` is not called any more; ``failure``
    is the error that ``look`` raised.
    """

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        self.over = False
        self.failure: KinstError | None = None

    @abstractmethod
    def look(self, address: int) -> None:
        """Examine the machine before the instruction at ``address`` is executed."""

    @contextlib.contextmanager
    def each_instruction(self, stores: Callable[..., None] | None = None) -> Iterator[None]:
        """Call ``look`` before each instruction while the context is active.

        :param stores: called before each store, with the arguments of a Unicorn memory hook.
        """
        machine = self.machine
        hooks = [machine.uc.hook_add(unicorn.UC_HOOK_CODE, self._executed, begin=1, end=0)]
        if stores is not None:
            hooks.append(machine.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, stores, begin=1, end=0))
        machine.engine.flush_translations()  # code translated earlier does not call the hook
        try:
            yield
        finally:
            for hook in hooks:
                machine.engine.unhook(hook)

    def watch(self, addresses: Iterable[int], instructions: int) -> Stop:
        """Run the machine, and call ``look`` before each instruction.

        :param addresses: words whose stores ``kept`` reports.
        :param instructions: instruction count of the machine at which the run ends at the latest.
        :raises KinstError: the error that ``look`` raised.
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
        """Forward an event of Unicorn's code hook to ``executed``."""
        self.executed(address)

    def executed(self, address: int) -> None:
        """Call ``look`` before an instruction is executed, or at the end of a run."""
        if self.failure is None and not self.over:
            try:
                self.look(address)
            except KinstError as error:
                # Unicorn discards exceptions raised in hooks, so raising does not stop the machine.
                self.failure = error
                self.failed(address)

    def failed(self, address: int) -> None:
        """Stop the run after ``look`` has raised an error."""
        self.machine.request_stop(Stop(StopReason.INTERRUPTED, address))
