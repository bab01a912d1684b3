"""Kinds of starting points of recorded runs."""

# BOOT: the image as the boot loader leaves it.  PLACED: the image in memory, without a boot.
# BOOTED: a boot to the prompt.  STATE: the state in the recording's first checkpoint.
BOOT, PLACED, BOOTED, STATE = "boot", "placed", "booted", "state"
STARTS = (BOOT, PLACED, BOOTED, STATE)
