"""What can go wrong in the machine, as one clear line each."""


class KinstError(Exception):
    """An error meant for the user: its text says what, where, and what to do."""


class ImageError(KinstError):
    """A kernel image cannot be used."""


class SnapshotError(KinstError):
    """A snapshot file cannot be used."""


class MemoryAccessError(KinstError):
    """A guest address is not mapped, or not in RAM."""


class MachineError(KinstError):
    """The machine cannot do what was asked."""
