"""Creation of the native probe dispatcher (``_dispatch.pyx``) for an architecture."""

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
    """Create a native dispatcher for an architecture, and its initially empty templates.

    :param frame: trap frame of the kernel that handles the traps.
    :param engine: the machine's engine; None: the dispatcher does not handle breakpoints.
    """
    templates = Templates(trap, register_names(arch, trap))
    made = Dispatcher(engine, shape(arch, trap, frame), templates)
    templates.serve(made)
    return made, templates
