"""Template constants that Python and the native core (``_template.pxi``) share, besides ``Op``."""

import enum

NO_REGISTER = 0xFF
MAX_ROUNDS = 4  # maximum number of passes over a function to find the data in it


class Trait(enum.IntFlag):
    """Property of an instruction, in addition to its operation."""

    ENDS_BLOCK = 1
    STARTS_EXCLUSIVE = 2
    ENDS_EXCLUSIVE = 4
    PROLOGUE = 8
    RETURNS = 16
    LANDING = 32
    REPEATS = 64  # the CPU model counts each of its repetitions separately
