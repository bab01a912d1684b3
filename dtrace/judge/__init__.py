"""Comparison of D programs by FreeBSD's dtrace(1) and by kdtrace, without running either."""
