"""Which thread of the guest a CPU runs, as the kernel itself keeps it."""

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine


def per_cpu(machine: Machine) -> int | None:
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


def thread_word(machine: Machine) -> int | None:
    """The physical address of the word that says which thread runs (the first of ``struct pcpu``);
    None: there is none yet."""
    base = per_cpu(machine)
    physical = None if base is None else machine.translate(base)
    ram = machine.ram_base
    return physical if physical is not None and ram <= physical < ram + machine.memory else None


def thread_of(machine: Machine) -> int:
    """The address of the running thread's ``struct thread``; 0: there is none yet."""
    word = thread_word(machine)
    return 0 if word is None else int.from_bytes(machine.read_physical(word, 8), "little")
