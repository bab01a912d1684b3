"""The native dispatcher of probes (``_dispatch.pyx``), which asks the tables of an architecture."""

from emu.arch.arch import Arch
from emu.guest.guest import TrapFrame
from emu.unicorn._engine import Engine
from kinst.code.reader import Templates
from kinst.probes._dispatch import Dispatcher
from kinst.relocation.shape import register_names, shape
from kinst.relocation.trap import GuestTrap


def new_dispatcher(
    arch: Arch, trap: GuestTrap, frame: TrapFrame, engine: Engine | None
) -> tuple[Dispatcher, Templates]:
    """A native dispatcher for the architecture, and the templates it will make.

    :param frame: of the kernel that takes the traps.
    :param engine: of the machine; None: its breakpoints are answered by another.
    """
    templates = Templates(trap, register_names(arch, trap))
    made = Dispatcher(engine, shape(arch, trap, frame), templates)
    templates.serve(made)
    return made, templates
