"""Where things lie in the laboratory's flat memory."""

CODE, SLOTS, DATA = 0x4000_0000, 0x4001_0000, 0x5000_0000  # the instruction, trampolines, data
PAGE = 0x1000
MASK = (1 << 64) - 1
