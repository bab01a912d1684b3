"""Exceptions with a one-line message for the user."""


class KinstError(Exception):
    """An error for the user; the message says what failed, where, and what to do."""


class ImageError(KinstError):
    """Error raised if a kernel image cannot be used."""


class SnapshotError(KinstError):
    """Error raised if a snapshot file cannot be used."""


class MemoryAccessError(KinstError):
    """Error raised if a guest address is not mapped or not in RAM."""


class MachineError(KinstError):
    """Error raised if the machine cannot carry out a request."""


class OtherContentError(KinstError):
    """Error raised if a saved state belongs to other files than those of the machine."""
