"""Explanations of firings, system calls, page faults and context switches from a recorded run."""
