"""Names that explanations use for the addresses of a kernel."""

from collections.abc import Callable
from dataclasses import dataclass

from emu.arch.arch import Arch
from emu.guest.guest import Guest
from kinst.relocation.trap import GuestTrap, trap_of


@dataclass(frozen=True)
class Words:
    """Functions that name the addresses of a kernel in explanations.

    :param where: returns an address as ``function+offset``.
    :param source: returns the ``file:line`` of an address, or an empty string if unknown.
    :param text: returns the source line of an address, or an empty string if not available.
    :param variable: returns the kernel variable that contains an address, or an empty string.
    """

    arch: Arch
    guest: Guest
    where: Callable[[int], str]
    source: Callable[[int], str]
    text: Callable[[int], str] = lambda address: ""
    variable: Callable[[int], str] = lambda address: ""

    @property
    def trap(self) -> GuestTrap:
        """Host side of the kernel's breakpoint handling."""
        return trap_of(self.guest, self.arch.name)

    def place(self, address: int) -> str:
        """Format an address, followed by its name if the name is known."""
        name = self.where(address)
        return f"{address:#x}" if name == f"{address:#x}" else f"{address:#x}, {name}"
