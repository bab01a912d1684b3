"""Numbers of templates that Python and the native core (``_template.pxi``) share, beside ``Op``."""

import enum

NO_REGISTER = 0xFF
MAX_ROUNDS = 4  # over a function, until it is settled what of it is data


class Trait(enum.IntFlag):
    """What is to be known of an instruction, beside its operation."""

    ENDS_BLOCK = 1
    STARTS_EXCLUSIVE = 2
    ENDS_EXCLUSIVE = 4
    PROLOGUE = 8
    RETURNS = 16
    LANDING = 32
    REPEATS = 64  # itself, as the CPU model counts instructions
