"""How much there is, as one of a few colours."""

import math

HEATS = 9


def heat(count: int, most: int) -> int:
    """1 to HEATS, by the logarithm; 0 of nothing."""
    return 0 if not count else 1 + round((HEATS - 1) * math.log(count) / math.log(max(most, 2)))
