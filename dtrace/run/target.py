"""The kernel that D programs trace: its probes, types and state."""

from collections.abc import Callable
from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dtrace.run.guest_state import GuestState
from dtrace.run.kernel import KernelProbes, KernelSymbols
from dtrace.run.processes import GuestProcesses
from dtrace.run.qemu_guest import QemuGuest
from dtrace.run.unicorn_guest import UnicornGuest
from dtrace.stacks.user_programs import UserPrograms
from dwarf.types import Types
from emu.elf.image import Image
from emu.qemu.machine import QemuMachine
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.seam_breakpoints import SeamBreakpoints


@dataclass(frozen=True)
class Target:
    """What D programs are compiled for: the probes and types of one kernel.

    :param types: None where the kernel has none.
    """

    probes: KernelProbes
    types: Types | None
    guest: GuestState
    processes: GuestProcesses

    @property
    def image(self) -> Image:
        return self.probes.breakpoints.image

    @property
    def symbols(self) -> KernelSymbols:
        return KernelSymbols(self.image, self.guest.lines, self.guest.programs)


def new_target(breakpoints: Breakpoints | SeamBreakpoints, types: Types | None, unsafe: bool,
               programs: UserPrograms, next_program: Callable[[], str], stops: bool = True
               ) -> Target:
    """The machine of some breakpoints, among which the programs' probes are made.

    :param unsafe: excluded functions are probed, too.
    :param programs: whose functions stacks of users name.
    :param next_program: gives the name of the program that the next process is made for.
    :param stops: what runs ends when tracing does.
    """
    processes = GuestProcesses(breakpoints.machine, programs, next_program)
    probes = KernelProbes(
        breakpoints, unsafe, None if types is None else lambda: debug_index(breakpoints.image),
        None if types is None else lambda: types, processes.program)
    guest: GuestState
    if isinstance(breakpoints, Breakpoints):
        guest = UnicornGuest(breakpoints, probes, types, stops)
    else:
        assert isinstance(breakpoints.machine, QemuMachine)
        guest = QemuGuest(breakpoints.machine, breakpoints, probes, types)
    guest.programs = programs
    return Target(probes, types, guest, processes)
