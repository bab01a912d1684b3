"""Kernels as Python programs open them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtrace.debug_data import Sources
from dtrace.prototypes import Prototypes
from dtrace.symbols import find_symbol, sized_functions
from dwarf.debug_file import debug_file
from emu.architectures import arch_of
from emu.elf import Image
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from kinst.code.listing import image_code, instructions
from kinst.code.verdict import Refuse, summary
from kinst.trap import TRAPS
from kinst_emu.machine import Machine
from kinst_emu.terminal import parse_size

MEMORY = "512M"


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


class Kernel:
    """A kernel image: a file, its symbols, and its debug data where it has some."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self.prototypes = Prototypes(image)

    @property
    def path(self) -> Path:
        return self._image.path

    @property
    def arch(self) -> str:
        """``amd64``, ``arm64`` or ``riscv64``."""
        return arch_of(self._image).name

    @property
    def has_debug_data(self) -> bool:
        return debug_file(self._image.path) is not None

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
                for i in instructions(TRAPS[arch.name], code, symbol)]

    # -- machines ---------------------------------------------------------------------------------

    def boot(self, memory: str = MEMORY, limit: int = boots.LIMIT) -> Machine:
        """A machine at the kernel's prompt: restored from the user's cache, or booted and kept
        there.

        :param memory: the guest's RAM, like ``512M`` or ``1G``.
        :param limit: instructions after which a boot that has to be made is given up.
        :raises BootError: when the kernel does not get there; its ``console`` is what it wrote.
        """
        return Machine(self, boots.booted(self._image, parse_size(memory), limit))

    def start(self, memory: str = MEMORY) -> Machine:
        """A machine early in its boot: vectors and page tables are there, devices are not looked
        for yet.  ``machine.run(console=kinst_emu.PROMPTS)`` boots on from there, with probes.
        """
        machine = UnicornMachine(self._image, parse_size(memory))
        machine.boot()
        boots.at_start(machine)
        return Machine(self, machine)

    def reset(self, memory: str = MEMORY) -> Machine:
        """A machine at the kernel's first instruction."""
        machine = UnicornMachine(self._image, parse_size(memory))
        machine.boot()
        return Machine(self, machine)

    def unbooted(self, memory: str = MEMORY) -> Machine:
        """A machine with the kernel in memory, mapped where it was linked, and nothing executed:
        enough for calls of functions that need nothing else."""
        return Machine(self, boots.unbooted(self._image, parse_size(memory)))

    def restore(self, path: str | Path) -> Machine:
        """A machine from a snapshot file (``machine.save``, ``kinst boot --save``).

        :raises SnapshotError: when it is none, or of another kernel.
        """
        return Machine(self, snapshot.restore(Path(path), self._image))


def open_kernel(name: str | Path, modules: Sequence[str | Path] = ()) -> Kernel:
    """Open a kernel.

    :param modules: to be loaded behind it, with those that they depend on: files, or names of files
        beside it (``kinst.ko``).
    :param name: a file, or a name that ``kinst images`` lists.
    :raises ImageError: when there is none, or it is no kernel for amd64, arm64 or riscv64.
    """
    return Kernel(catalog.find(str(name), [str(module) for module in modules]))


def images() -> Sequence[str]:
    """The names of the kernels that are here, as ``open`` takes them."""
    return [image.name for image in catalog.known() if image.path is not None]
