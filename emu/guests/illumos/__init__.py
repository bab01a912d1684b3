"""The illumos way to take a breakpoint, as a flavour of the teaching kernel has it."""
