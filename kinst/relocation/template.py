"""Constants of templates, shared with the native core; ``Op`` is in ``verdict.py``."""

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
