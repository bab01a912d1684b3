"""Each instruction of a run looked at, before it is executed."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import unicorn

from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason, Until
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explain.record.kept_words import KeptWords


class EachInstruction(ABC):
    """``over``: what is wanted has been seen; nothing more is looked at."""

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        self.over = False
        self._failure: KinstError | None = None

    @abstractmethod
    def look(self, address: int) -> None:
        """At an instruction."""

    def watch(self, addresses: Iterable[int], instructions: int) -> Stop:
        """Run.

        :param addresses: of words whose stores ``kept`` tells of.
        :param instructions: of the machine, at which it ends at the latest.
        :raises KinstError: what ``look`` has raised.
        """
        machine, self._failure = self.machine, None
        self.kept = KeptWords(machine, addresses)
        hook = machine.uc.hook_add(unicorn.UC_HOOK_CODE, self._executed, begin=1, end=0)
        machine.engine.flush_translations()
        try:
            stop = machine.run(Until(instructions=instructions))
        finally:
            machine.engine.unhook(hook)
            self.kept.close()
        if self._failure is not None:
            raise self._failure
        if stop.reason is StopReason.INTERRUPTED and not self.over:
            raise KeyboardInterrupt
        return stop

    def _executed(self, _uc: unicorn.Uc, address: int, _size: int, _data: object) -> None:
        """Unicorn keeps an exception to itself here, and the machine would never end."""
        if self._failure is None and not self.over:
            try:
                self.look(address)
            except KinstError as error:
                self._failure = error
                self.machine.request_stop(Stop(StopReason.INTERRUPTED, address))
