"""Template constants, except ``Op``, that Python and the native core (``_template.pxi``) share."""

import enum

NO_REGISTER = 0xFF
MAX_ROUNDS = 4  # maximum number of passes over a function to find data in the code


class Trait(enum.IntFlag):
    """Property of an instruction, in addition to its operation."""

    ENDS_BLOCK = 1
    STARTS_EXCLUSIVE = 2
    ENDS_EXCLUSIVE = 4
    PROLOGUE = 8
    RETURNS = 16
    LANDING = 32
    REPEATS = 64  # the CPU model counts each repetition separately
