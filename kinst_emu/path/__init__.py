"""Paths of a thread through the kernel, as pages and text."""
