"""The illumos variant on amd64, with ``struct regs`` and a separate stack for breakpoints."""
