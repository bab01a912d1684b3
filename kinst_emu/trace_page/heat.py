"""Color classes for counts."""

import math

HEATS = 9


def heat(count: int, most: int) -> int:
    """Return the color class of a count: 1 to HEATS on a logarithmic scale, or 0 for no firings.

    :param most: the largest count.
    """
    return 0 if not count else 1 + round((HEATS - 1) * math.log(count) / math.log(max(most, 2)))
