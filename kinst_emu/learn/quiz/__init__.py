"""Quiz about breakpoints, trap frames and trampolines, with answers observed on the machine."""
