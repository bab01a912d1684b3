"""Creation of Unicorn engines, with a check that the host has enough address space."""

import gc

import unicorn

from emu.host.errors import MachineError
from emu.host.system import try_address_space

TRANSLATIONS = 1 << 30  # size of an engine's address space for translated code, in bytes
BESIDE = 64 << 20  # size in bytes of the engine's other tables


def new_engine(architecture: int, mode: int) -> unicorn.Uc:
    """Create a Unicorn engine.

    Unicorn ends the whole process if it cannot reserve memory for translated code, so the
    reservation is tried first.

    :raises MachineError: if the host lacks the address space.
    """
    try:
        try_address_space(TRANSLATIONS + BESIDE)
    except OSError:
        gc.collect()  # frees machines that are no longer referenced
    try:
        try_address_space(TRANSLATIONS + BESIDE)
    except OSError as error:
        raise MachineError(f"a new machine needs {TRANSLATIONS >> 20} MiB of address space for "
                           f"translated code: {error.strerror}; release other machines, or raise "
                           "the limit (ulimit -v)") from None
    return unicorn.Uc(architecture, mode)
