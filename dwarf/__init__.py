"""Readers for DWARF and CTF debug data of FreeBSD kernels and modules."""
