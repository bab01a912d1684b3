"""What the machine on QEMU must know of an architecture; one object in each folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emu.elf.image import Image
from emu.unicorn.machine import UnicornMachine


class Entered(Protocol):
    """The machine on QEMU while its CPU is set to a state."""

    pc: int

    def read_physical(self, address: int, size: int) -> bytes: ...

    def write_physical(self, address: int, data: bytes) -> None: ...

    def write_register(self, name: str, value: int) -> None: ...

    def hidden_memory(self, size: int) -> int: ...

    def run_stub(self, end: int) -> None:
        """Run code of ours from the pc in force to an address."""


@dataclass(frozen=True)
class QemuBoard:
    """:param program: the emulator; ``options`` name its machine and CPU, without the memory.
    :param ram_base: physical address of RAM.
    :param boot: options that boot an image with so much memory; files go to the directory.
    :param carry: options of a machine whose memory and CPU we set.
    :param enter: sets the CPU to the present state of the other machine's.
    :param spellings: of one of our register names, those the gdb stub may have for it.
    :param breakpoint_kind: of gdb's Z packets, for the instruction at an address.
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
