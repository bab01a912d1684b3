"""Numbers of probe kinds and trap paths, shared with the native core (``_dispatch.pyx``)."""

import enum


class ProbeKind(enum.IntEnum):
    """Kind of a probe, which determines its provider and its name."""

    OFFSET = 0
    ENTRY = 1
    RETURN = 2
    STATIC = 3
    PROGRAM_OFFSET = 4  # like OFFSET, but in a program instead of the kernel
    PROGRAM_ENTRY = 5
    PROGRAM_RETURN = 6
    PROGRAM_STATIC = 7  # a probe that a program declares
    PROGRAM_ASKED = 8  # an instruction whose result tells the program that the probe is enabled


class TrapPath(enum.IntEnum):
    """Path that a breakpoint takes; see ``kinst/probes/breakpoints.py``."""

    GUEST = 0
    DIRECT = 1
    DOUBLE = 2
