"""New engines of Unicorn, where the host has room for them."""

import gc
import mmap

import unicorn

from emu.host.errors import MachineError

TRANSLATIONS = 1 << 30  # bytes of address space that each engine has for what it translates
BESIDE = 64 << 20  # for its other tables
MAP_NORESERVE = 0x4000


def new_engine(architecture: int, mode: int) -> unicorn.Uc:
    """An engine.  Unicorn ends the whole process where it finds no room for what it translates, so
    that this is tried first.

    :raises MachineError: when there is none.
    """
    try:
        _try()
    except OSError:
        gc.collect()  # machines that nobody holds any more
    try:
        _try()
    except OSError as error:
        raise MachineError(f"another machine needs {TRANSLATIONS >> 20} MiB of address space for "
                           f"what it translates: {error.strerror}: let go of machines, or raise "
                           "the limit (ulimit -v)") from None
    return unicorn.Uc(architecture, mode)


def _try() -> None:
    """Reserve as much address space as an engine takes, and let go of it.

    :raises OSError: when there is not as much.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    mmap.mmap(-1, TRANSLATIONS + BESIDE, flags=flags,
              prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
