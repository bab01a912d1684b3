"""What the machine on QEMU must know of an architecture; one object in each folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emu.elf import Image

if TYPE_CHECKING:
    from emu.qemu.machine import QemuMachine
    from emu.unicorn.machine import UnicornMachine


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
    enter: Callable[["QemuMachine", "UnicornMachine"], None]
    spellings: Callable[[str], tuple[str, ...]]
    breakpoint_kind: int
    constants: frozenset[str] = frozenset()  # names of registers that are always 0
