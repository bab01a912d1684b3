"""Answers to why something happened in a recorded run."""
