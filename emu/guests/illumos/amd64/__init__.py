"""The illumos variant on amd64: ``struct regs``, and a separate stack for breakpoints."""
