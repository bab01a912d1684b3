"""Interactive sessions with a kernel, in a terminal and in notebooks."""
