"""A whole trace as a page: kdtrace --report."""
