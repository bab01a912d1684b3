"""Ways of the kernel that are followed without a probe: a system call, a page fault, a switch."""
