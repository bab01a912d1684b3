"""Variants of the teaching kernel that handle breakpoints as illumos does."""
