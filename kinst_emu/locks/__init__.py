"""Locks in a recorded run: who held which, where and for how long, and in which order."""
