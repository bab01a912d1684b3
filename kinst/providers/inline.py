"""Probes on inline copies in the kernel: ``kinst::name:entry`` and ``:return``.

They are those of the kinst paper, section V.  ``kinst/providers/copy_ends.py`` says where they are.
"""

from collections.abc import Sequence

from dwarf.index import DebugIndex, Function
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.symbols import KERNEL, Symbol
from emu.guests.registry import guest_of
from emu.host.errors import ImageError
from kinst.code.cold_parts import is_cold
from kinst.code.listing import image_code
from kinst.probes.dispatcher import new_dispatcher
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import CopyEnd, ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt
from kinst.providers.copy_ends import MAX_PIECES, CopiedInto, begin, united
from kinst.providers.patterns import matches
from kinst.providers.provider import MadeProbes
from kinst.relocation.trap import trap_of


class Entrances:
    """Analysis of the kernel's file that finds the entry addresses of inline copies."""

    def __init__(self, image: Image) -> None:
        self._image, arch = image, arch_of(image)
        guest = guest_of(image, arch.name)
        self._trap = trap_of(guest, arch.name)
        self._dispatcher, _templates = new_dispatcher(
            arch, self._trap, guest.traps.trap_frame, None)

    def of(self, copy: Function) -> list[int]:
        """Return the addresses at which control enters an inline copy.

        Where the code does not determine them, return the one that follows from the debug data.
        """
        symbols = self._image.symbols
        entry = begin(copy, symbols.function_at)
        function = symbols.function_at(entry)
        if function is None or copy.begins == entry or len(copy.pieces) > MAX_PIECES:
            return [entry]
        number = self._dispatcher.add_copy(united(list(copy.pieces)))
        try:
            code = image_code(self._image, function)
        except ImageError:  # the file contains only debug data
            return [entry]
        ((entered, _left),) = self._dispatcher.add_copy_ends(
            function.address, code, 0, function.size, 0, ProbeKind.OFFSET,
            [(number, entry - function.address, False)], False, False,
            self._trap.instructions.is_padding, is_cold(function.name))
        return [function.address + at for at, _number in entered]


class _Kernel(CopiedInto):
    """The code of the kernel and its modules.

    :param unsafe: whether to probe excluded functions, too.
    :param module: pattern of the modules to probe.
    """

    def __init__(self, probes: ProbeTable, where: str, unsafe: bool, module: str) -> None:
        super().__init__(probes, where)
        self._unsafe, self._module = unsafe, module

    @property
    def program(self) -> int:
        return 0

    def function_at(self, address: int) -> Symbol | None:
        return self.probes.image.symbols.function_at(address)

    def is_wanted(self, caller: Symbol) -> bool:
        return matches(self._module, caller.module_name)

    def refusal(self, caller: Symbol) -> str:
        exclusions = self.probes.machine.guest.traps.exclusions
        return "" if self._unsafe else exclusions.reason(caller.name)

    def add_ends(self, caller: Symbol, copies: Sequence[tuple[int, int | None, bool]], entry: bool,
                 returns: bool) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        return self.probes.add_copy_ends(caller, copies, entry, returns)

    def end(self, caller: Symbol, offset: int) -> str:
        module = "" if caller.module == KERNEL else caller.module_name
        return f"kinst:{module}:{caller.name}:{offset}"


def create(
    breakpoints: ProbeTable, index: DebugIndex, function: str, name: str, unsafe: bool = False,
    module: str = "", whole: bool = True,
) -> MadeProbes:
    """Create the probes that ``kinst::function:entry`` or ``kinst::function:return`` describes.

    These are at every inline copy and, where the function is not inline, those of FBT.

    :param whole: False to probe only the inline copies.
    :raises ProbeError: when no probe can be created; the message says why.
    """
    probes = _Kernel(breakpoints, f"kinst:{module}:{function}:{name}", unsafe, module).create(
        index.copies(function), name)
    if (whole and any(f.pieces and not f.inlined for f in index.named(function))) or (
            whole and not probes.text):
        _add_fbt(breakpoints, probes, function, name, unsafe, module)
    return probes


def _add_fbt(breakpoints: ProbeTable, found: MadeProbes, function: str, name: str, unsafe: bool,
             module: str) -> None:
    """Add the FBT probes on a function's out-of-line copy.

    :raises ProbeError: when no probes could be created at all.
    """
    try:
        found.numbers.extend(fbt.create(breakpoints, function, name, unsafe, module))
        found.text.append(f"fbt:{module}:{function}:{name}")
    except ProbeError as error:
        if not found.text:
            if not found.reports:
                raise
            more = f" (and {len(found.reports) - 1} more)" if len(found.reports) > 1 else ""
            raise ProbeError(found.reports[0] + more) from None
        found.reports.append(str(error))
