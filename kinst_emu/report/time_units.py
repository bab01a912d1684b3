"""Virtual time in the unit that fits."""

from collections.abc import Sequence

UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1))
DIGITS = 3  # behind the point, on an axis


def unit_of(nanoseconds: int) -> tuple[str, int]:
    """The largest unit that a time has one of, and its nanoseconds."""
    return next((one for one in UNITS if nanoseconds >= one[1]), UNITS[-1])


def exact(nanoseconds: int) -> str:
    """A time with all its digits: ``30.006478 ms``."""
    if nanoseconds < 0:
        return f"-{exact(-nanoseconds)}"
    name, size = unit_of(nanoseconds)
    whole, rest = divmod(nanoseconds, size)
    digits = f"{rest:0{len(str(size)) - 1}}".rstrip("0") if rest else ""
    return f"{whole}.{digits} {name}" if digits else f"{whole} {name}"


def along_axis(times: Sequence[float]) -> list[str]:
    """Times on one axis, in one unit; the last is the largest."""
    name, size = unit_of(int(times[-1]))
    return [f"{time / size:.{DIGITS}f}".rstrip("0").rstrip(".") + f" {name}" for time in times]
