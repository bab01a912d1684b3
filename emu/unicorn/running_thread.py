"""The running thread of each CPU of a machine."""

from emu.machine.running_thread import thread_word
from emu.unicorn.machine import UnicornMachine


def thread_words(machine: UnicornMachine) -> list[int | None]:
    """Return, for each CPU, the physical address of the word that points to its running thread.

    The address is None before the kernel has set up the word (``thread_word``).
    """
    return [thread_word(machine) for _cpu in machine.schedule.each()]


def newer(words: list[int | None], now: list[int | None]) -> list[int | None]:
    """Return ``now`` with each unknown address (None) replaced by the address in ``words``."""
    return [before if word is None else word for before, word in zip(words, now, strict=True)]


def watch_threads(machine: UnicornMachine) -> None:
    """Have the engine watch the running thread of each CPU.

    For a CPU that is started later, watching begins with the CPU's first turn.
    """
    def watch() -> None:
        if not machine.engine.watches_thread:
            machine.engine.watch_thread(thread_word(machine))

    for _cpu in machine.schedule.each():
        machine.engine.watch_thread(thread_word(machine))
    machine.schedule.turned = watch
