"""Formatting of virtual times in a suitable unit."""

from collections.abc import Sequence

UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1))
DIGITS = 3  # number of digits after the decimal point on an axis


def unit_of(nanoseconds: int) -> tuple[str, int]:
    """Return the name and nanoseconds of the largest time unit that does not exceed a time."""
    return next((unit for unit in UNITS if nanoseconds >= unit[1]), UNITS[-1])


def exact(nanoseconds: int) -> str:
    """Format a time with all its digits, like ``30.006478 ms``."""
    if nanoseconds < 0:
        return f"-{exact(-nanoseconds)}"
    name, size = unit_of(nanoseconds)
    whole, remainder = divmod(nanoseconds, size)
    digits = f"{remainder:0{len(str(size)) - 1}}".rstrip("0") if remainder else ""
    return f"{whole}.{digits} {name}" if digits else f"{whole} {name}"


def along_axis(times: Sequence[float]) -> list[str]:
    """Format the times on an axis in the largest unit that does not exceed the last time."""
    name, size = unit_of(int(times[-1]))
    return [f"{time / size:.{DIGITS}f}".rstrip("0").rstrip(".") + f" {name}" for time in times]
