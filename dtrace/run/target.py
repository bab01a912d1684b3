"""Kernel that D programs trace, with the kernel's probes, types and state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dtrace.debug.debug_index import debug_index
from dtrace.run.advance_run import RunProgram, run_in_advance
from dtrace.run.guest_state import GuestState
from dtrace.run.kernel import KernelSymbols
from dtrace.run.kernel_probes import KernelProbes
from dtrace.run.processes import GuestProcesses
from dtrace.run.qemu_guest import QemuGuest
from dtrace.run.unicorn_guest import UnicornGuest
from dtrace.stacks.user_programs import UserPrograms
from dwarf.types import Types
from emu.elf.image import Image
from emu.qemu.machine import QemuMachine
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.seam_breakpoints import SeamBreakpoints


@dataclass(frozen=True)
class Target:
    """Kernel for which D programs are compiled.

    :param types: the kernel's types, or None if it has none.
    """

    probes: KernelProbes
    types: Types | None
    guest: GuestState
    processes: GuestProcesses

    @property
    def image(self) -> Image:
        """The kernel's image."""
        return self.probes.breakpoints.image

    @property
    def symbols(self) -> KernelSymbols:
        """Names of addresses in the kernel and its user programs."""
        return KernelSymbols(self.image, self.guest.lines, self.guest.programs)


def new_target(breakpoints: Breakpoints | SeamBreakpoints, types: Types | None, unsafe: bool,
               programs: UserPrograms, next_program: Callable[[], str], stops: bool = True,
               command: Callable[[], None] | None = None) -> Target:
    """Create the target of D programs for a machine that has breakpoints.

    :param unsafe: whether to probe excluded functions, too.
    :param programs: programs whose functions are named in user stacks.
    :param next_program: returns the name of the program for which the next process will be created.
    :param stops: whether the workload stops when tracing ends.
    :param command: runs the workload, to find out what its processes map; None: unknown.
    """
    machine = breakpoints.machine
    in_advance: Callable[[], Mapping[tuple[int, str], RunProgram]] | None = None
    if command is not None and types is not None and isinstance(machine, UnicornMachine):
        in_advance = partial(run_in_advance, machine, types, command)
    processes = GuestProcesses(machine, programs, next_program,
                               lambda thread: guest.mapped(thread), in_advance)
    probes = KernelProbes(
        breakpoints, unsafe, None if types is None else lambda: debug_index(breakpoints.image),
        None if types is None else lambda: types, processes.program,
        processes.programs if isinstance(machine, UnicornMachine) else None)
    guest: GuestState
    if isinstance(breakpoints, Breakpoints):
        guest = UnicornGuest(breakpoints, probes, types, stops)
    else:
        assert isinstance(breakpoints.machine, QemuMachine)
        guest = QemuGuest(breakpoints.machine, breakpoints, probes, types)
    guest.programs = programs
    return Target(probes, types, guest, processes)
