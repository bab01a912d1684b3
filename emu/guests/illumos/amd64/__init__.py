"""amd64: struct regs, and the stack that breakpoints come on."""
