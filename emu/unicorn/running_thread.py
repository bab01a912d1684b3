"""Which thread of the guest a CPU runs, as the kernel itself keeps it."""

from emu.host.errors import MemoryAccessError
from emu.unicorn.machine import UnicornMachine


def per_cpu(machine: UnicornMachine) -> int | None:
    """The virtual address of the running CPU's ``struct pcpu``; None: there is none yet."""
    guest = machine.guest
    register, saved = guest.threads.per_cpu_outside
    programs = bool(register and guest.boot.shell_prompt)
    base = machine.read_register(guest.threads.per_cpu)
    if not programs or (machine.pc >> 63 and base >> 63):
        saved = False
    else:  # a program, or the kernel's first instructions behind one
        base = machine.read_register(register)
    if saved:
        try:
            base = machine.read_u64(base)
        except MemoryAccessError:
            return None
    return base if base and not base % 8 else None


def thread_word(machine: UnicornMachine) -> int | None:
    """The physical address of the word that says which thread runs (the first of ``struct pcpu``);
    None: there is none yet."""
    base = per_cpu(machine)
    physical = None if base is None else machine.translate(base)
    ram = machine.board.ram_base
    return physical if physical is not None and ram <= physical < ram + machine.memory else None


def thread_words(machine: UnicornMachine) -> list[int | None]:
    """The same of each CPU."""
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


def thread_of(machine: UnicornMachine) -> int:
    """The address of the running thread's ``struct thread``; 0: there is none yet."""
    word = thread_word(machine)
    return 0 if word is None else int.from_bytes(machine.read_physical(word, 8), "little")
