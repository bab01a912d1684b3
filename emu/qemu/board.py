"""Interface between the QEMU machine and its architecture-dependent parts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emu.elf.image import Image
from emu.unicorn.machine import UnicornMachine


class Entered(Protocol):
    """Interface of a QEMU machine while its CPU is set to another machine's state."""

    pc: int

    def read_physical(self, address: int, size: int) -> bytes:
        """Read RAM at a physical address."""

    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM at a physical address."""

    def write_register(self, name: str, value: int) -> None:
        """Set a register."""

    def hidden_memory(self, size: int) -> int:
        """Return the physical address of memory that the guest does not know about."""

    def run_stub(self, end: int) -> None:
        """Run code from the current pc up to an address."""


@dataclass(frozen=True)
class QemuBoard:
    """QEMU's options for an architecture, and its differences from the Unicorn machine.

    :param program: the name of the emulator's executable.
    :param machine: the argument of ``-M``.
    :param cpu: the argument of ``-cpu``.
    :param ram_base: the physical address of RAM.
    :param boot: called with an image, the size of RAM in bytes and a directory for files; returns
        the options that boot the image.
    :param carry: options for a machine whose memory and CPU state are transferred.
    :param enter: sets the CPU to the current state of another machine.
    :param spellings: returns the names that the gdb stub may use for a register.
    :param breakpoint_kind: the kind field of gdb's Z packets.
    """

    program: str
    machine: str
    cpu: str
    ram_base: int
    boot: Callable[[Image, int, Path], list[str]]
    carry: tuple[str, ...]
    enter: Callable[[Entered, UnicornMachine], None]
    spellings: Callable[[str], tuple[str, ...]]
    breakpoint_kind: int
    constants: frozenset[str] = frozenset()  # names of registers that are always 0
