"""HTML page of a trace, written by ``kdtrace --report``."""
