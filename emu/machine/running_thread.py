"""The running thread of a CPU, read from the guest kernel's per-CPU data."""

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine


def per_cpu(machine: Machine) -> int | None:
    """Return the virtual address of the running CPU's ``struct pcpu``, or None before its setup."""
    guest = machine.guest
    register, saved = guest.threads.per_cpu_outside
    programs = bool(register and guest.boot.shell_prompt)
    base = machine.read_register(guest.threads.per_cpu)
    if not programs or (machine.pc >> 63 and base >> 63):
        saved = False
    else:  # a program is running, or has just entered the kernel
        base = machine.read_register(register)
    if saved:
        try:
            base = machine.read_u64(base)
        except MemoryAccessError:
            return None
    return base if base and not base % 8 else None


def thread_word(machine: Machine) -> int | None:
    """Return the physical address of the word that points to the running thread.

    The word is the first word of ``struct pcpu``.  The address is None before the kernel's setup.
    """
    base = per_cpu(machine)
    physical = None if base is None else machine.translate(base)
    ram = machine.ram_base
    return physical if physical is not None and ram <= physical < ram + machine.memory else None


def thread_of(machine: Machine) -> int:
    """Return the address of the running thread's ``struct thread``, or 0 before threads exist."""
    word = thread_word(machine)
    return 0 if word is None else int.from_bytes(machine.read_physical(word, 8), "little")
