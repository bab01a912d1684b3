"""Record a bug that only a program can trigger: a limit that exceeds the allocated memory.

The kernel's semaphore limits are raised, but the memory for the semaphores keeps its size. The
kernel only fails when a program asks for more semaphores than fit.

    kinst record -k KERNEL -o sem.rec semaphores.py
"""

from kinst_emu import Machine

PROGRAM = "semaphores.c"
LIMIT, WANTED = 30_000, 14_000


def workload(machine: Machine) -> None:
    """Raise the semaphore limits and run the program; the machine must be at the shell prompt."""
    limits = machine.struct("seminfo", machine.kernel.symbol("seminfo"))
    machine.command("/files/semaphores 340")
    limits.semmns = limits.semmsl = LIMIT
    machine.command(f"/files/semaphores {WANTED}")
