"""Memory layout of the laboratory."""

# Addresses of the instruction, the trampolines and the data
CODE, SLOTS, DATA = 0x4000_0000, 0x7000_0000, 0x5000_0000
PAGE = 0x1000
MASK = (1 << 64) - 1
