"""A kernel as its files describe it."""

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
    """An instruction of a function, as it stands in the kernel's file.

    :param offset: bytes from the function's begin: what ``kinst::function:offset`` probes.
    :param code: its bytes.
    :param text: its disassembly.
    :param verdict: what becomes of it under a probe: ``copy``, ``rewrite ...``, ``emulate ...``, or
        ``refuse: ...`` with the reason.
    :param source: ``file:line``, or ``?``.
    """

    offset: int
    address: int
    code: bytes
    text: str
    verdict: str
    source: str

    @property
    def probeable(self) -> bool:
        return not self.verdict.startswith("refuse")


class KernelFile:
    """A kernel image: a file, its symbols, and its debug data where it has some."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self.prototypes = Prototypes(image)

    @property
    def image(self) -> Image:
        """What is loaded: the file, and its modules."""
        return self._image

    @property
    def path(self) -> Path:
        return self._image.path

    @property
    def arch(self) -> str:
        """``amd64``, ``arm64`` or ``riscv64``."""
        return arch_of(self._image).name

    @property
    def has_debug_data(self) -> bool:
        return debug_file(self._image.file) is not None

    @property
    def modules(self) -> list[str]:
        """The modules loaded behind it, in their order: ``dtrace.ko``."""
        return [module.name for module in self._image.modules]

    def __repr__(self) -> str:
        more = "".join(f" + {name}" for name in self.modules)
        return f"<kernel {self.path}{more} ({self.arch})>"

    def functions(self) -> list[str]:
        """The names of the functions that have a size, each once, in the order of their addresses.
        """
        return list(dict.fromkeys(symbol.name for symbol in self._image.symbols.functions()))

    def symbol(self, name: str) -> int:
        """The address of a function or variable.

        :raises KinstError: when the kernel has none of that name.
        """
        return find_symbol(self._image, name)

    def instructions(self, function: str) -> list[Instruction]:
        """A function's instructions, of the first one of that name.

        :raises KinstError: when there is no such function.
        """
        symbol = sized_functions(self._image, function)[0]
        arch, sources = arch_of(self._image), Sources(self._image)
        code = image_code(self._image, symbol)
        return [Instruction(i.offset, i.address, i.code, arch.disassemble(i.code, i.address),
                            f"refuse: {i.verdict.reason}" if isinstance(i.verdict, Refuse)
                            else summary(i.verdict), sources.line(i.address))
                for i in instructions(trap_of(guest_of(self._image, arch.name), arch.name), code,
                                      symbol)]
