"""Which thread each of a machine's CPUs runs."""

from emu.machine.running_thread import thread_word
from emu.unicorn.machine import UnicornMachine


def thread_words(machine: UnicornMachine) -> list[int | None]:
    """Of each CPU, the physical address of the word that says which thread runs (``thread_word``);
    None: there is none yet."""
    return [thread_word(machine) for _cpu in machine.schedule.each()]


def newer(words: list[int | None], now: list[int | None]) -> list[int | None]:
    """What is known now, and before of who is not known any more (a program runs there)."""
    return [before if word is None else word for before, word in zip(words, now, strict=True)]


def watch_threads(machine: UnicornMachine) -> None:
    """Tell the engine where each CPU's is; of one that is started later, when its turn comes."""
    def watch() -> None:
        if not machine.engine.watches_thread:
            machine.engine.watch_thread(thread_word(machine))

    for _cpu in machine.schedule.each():
        machine.engine.watch_thread(thread_word(machine))
    machine.schedule.turned = watch
