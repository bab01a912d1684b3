"""Exercises about breakpoints, trap frames and trampolines; each answer is what the machine did."""
