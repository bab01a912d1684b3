"""Numbers that Python and the native core (``kinst/probes/_dispatch.pyx``) share about probes."""

import enum


class ProbeKind(enum.IntEnum):
    """What a probe's number says about its name."""

    OFFSET = 0
    ENTRY = 1
    RETURN = 2
    STATIC = 3
    PROGRAM_OFFSET = 4  # of a program, not of the kernel
    PROGRAM_ENTRY = 5
    PROGRAM_RETURN = 6


class TrapPath(enum.IntEnum):
    """The ways of a breakpoint: see ``kinst/probes/breakpoints.py``."""

    GUEST = 0
    DIRECT = 1
    DOUBLE = 2
