"""Recorded runs of workloads, for commands that look at them."""
