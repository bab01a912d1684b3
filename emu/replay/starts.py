"""What a recorded run starts from."""

# The image, as the boot loader leaves it, or only placed; a boot to the prompt; a state that the
# recording has, as its first checkpoint.
BOOT, PLACED, BOOTED, STATE = "boot", "placed", "booted", "state"
STARTS = (BOOT, PLACED, BOOTED, STATE)
