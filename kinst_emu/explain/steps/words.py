"""How the places of a kernel are spoken of."""

from collections.abc import Callable
from dataclasses import dataclass

from emu.arch.arch import Arch
from emu.guest.guest import Guest
from kinst.relocation.trap import GuestTrap, trap_of


@dataclass(frozen=True)
class Words:
    """How places are spoken of.

    :param where: an address, as ``function+offset``.
    :param source: its ``file:line``; empty where nothing is known.
    :param text: that line itself; empty where its file is not here.
    :param variable: of an address, the variable of the kernel that lies there; empty: none.
    """

    arch: Arch
    guest: Guest
    where: Callable[[int], str]
    source: Callable[[int], str]
    text: Callable[[int], str] = lambda address: ""
    variable: Callable[[int], str] = lambda address: ""

    @property
    def trap(self) -> GuestTrap:
        """The host's half of its breakpoints."""
        return trap_of(self.guest, self.arch.name)

    def place(self, address: int) -> str:
        """An address, and what stands there."""
        name = self.where(address)
        return f"{address:#x}" if name == f"{address:#x}" else f"{address:#x}, {name}"
