"""Kernel files: their functions, instructions, symbols and debug data."""

from dataclasses import dataclass
from pathlib import Path

from dtrace.calls.prototypes import Prototypes
from dtrace.debug.debug_data import Sources
from dtrace.debug.symbols import find_symbol, sized_functions
from dwarf.debug_file import debug_file
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guests.registry import guest_of
from kinst.code.listing import image_code, instructions
from kinst.relocation.trap import trap_of
from kinst.relocation.verdict import Refuse, summary


@dataclass(frozen=True)
class Instruction:
    """Instruction of a function, as stored in the kernel file.

    :param offset: offset in bytes from the start of the function; ``kinst::function:offset`` probes
        the instruction.
    :param address: virtual address.
    :param code: machine code.
    :param text: disassembly.
    :param verdict: how a probe displaces the instruction: ``copy``, ``rewrite ...``,
        ``emulate ...``, or ``refuse: ...`` with the reason.
    :param source: ``file:line``, or ``?`` if unknown.
    """

    offset: int
    address: int
    code: bytes
    text: str
    verdict: str
    source: str

    @property
    def probeable(self) -> bool:
        """Whether a probe can be placed on the instruction."""
        return not self.verdict.startswith("refuse")


class KernelFile:
    """Kernel file with its symbols and, if available, its debug data."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self.prototypes = Prototypes(image)

    @property
    def image(self) -> Image:
        """Image of the kernel file and its modules."""
        return self._image

    @property
    def path(self) -> Path:
        """Path of the kernel file."""
        return self._image.path

    @property
    def arch(self) -> str:
        """Architecture of the kernel: ``amd64``, ``arm64`` or ``riscv64``."""
        return arch_of(self._image).name

    @property
    def has_debug_data(self) -> bool:
        """Whether debug data is available for the kernel."""
        return debug_file(self._image.file) is not None

    @property
    def modules(self) -> list[str]:
        """Names of the loaded kernel modules, such as ``dtrace.ko``, in load order."""
        return [module.name for module in self._image.modules]

    def __repr__(self) -> str:
        more = "".join(f" + {name}" for name in self.modules)
        return f"<kernel {self.path}{more} ({self.arch})>"

    def functions(self) -> list[str]:
        """Return the distinct names of all functions with a known size, in address order."""
        return list(dict.fromkeys(symbol.name for symbol in self._image.symbols.functions()))

    def symbol(self, name: str) -> int:
        """Return the address of a function or variable.

        :raises KinstError: when the kernel has no symbol of that name.
        """
        return find_symbol(self._image, name)

    def instructions(self, function: str) -> list[Instruction]:
        """Return the instructions of the first function with the given name.

        :raises KinstError: when the kernel has no such function.
        """
        symbol = sized_functions(self._image, function)[0]
        arch, sources = arch_of(self._image), Sources(self._image)
        code = image_code(self._image, symbol)
        return [Instruction(i.offset, i.address, i.code, arch.disassemble(i.code, i.address),
                            f"refuse: {i.verdict.reason}" if isinstance(i.verdict, Refuse)
                            else summary(i.verdict), sources.line(i.address))
                for i in instructions(trap_of(guest_of(self._image, arch.name), arch.name), code,
                                      symbol)]
