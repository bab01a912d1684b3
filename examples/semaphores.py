"""A bug that only a program can trigger: the kernel's limits for semaphores are raised, and the
memory that holds them stays as large as it was.  Nothing happens, until a program asks for that
many.

    kinst record -k KERNEL -o sem.rec semaphores.py
"""

from kinst_emu import Machine

PROGRAM = "semaphores.c"
LIMIT, WANTED = 30_000, 14_000


def workload(machine: Machine) -> None:
    """What is recorded: the machine is at the shell, with the program in /files."""
    limits = machine.struct("seminfo", machine.kernel.symbol("seminfo"))
    machine.command("/files/semaphores 340")
    limits.semmns = limits.semmsl = LIMIT
    machine.command(f"/files/semaphores {WANTED}")
