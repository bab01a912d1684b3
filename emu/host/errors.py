"""Exceptions with a one-line message for the user."""


class KinstError(Exception):
    """An error for the user; the message says what failed, where, and what to do."""


class ImageError(KinstError):
    """A kernel image cannot be used."""


class SnapshotError(KinstError):
    """A snapshot file cannot be used."""


class MemoryAccessError(KinstError):
    """A guest address is not mapped, or not in RAM."""


class MachineError(KinstError):
    """The machine cannot carry out a request."""
