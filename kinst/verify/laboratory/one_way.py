"""Detection of conditional jumps that can go only one way.

``beqz zero`` is an example, and so is ``beqz sp``, because the stack pointer is never zero.
"""

import random
from itertools import product

from kinst.relocation.verdict import Condition

VALUES = (0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1)
STACK = 0xFFFF_FFC0_1234_5680  # value of the stack pointer in all tested states
ZEROS = ("zero", "xzr")
MOST = 3  # maximum number of registers whose values are tried in all combinations
RANDOM = 512  # number of random states


class _Asked:
    """Register state with random values that remembers which registers a condition reads."""

    def __init__(self, stack: str) -> None:
        self.stack, self.values = stack, dict[str, int]()
        self._generator = random.Random(0)

    def get(self, register: str) -> int:
        """Return the value of a register, which is chosen at random at the first read."""
        if register in ZEROS:
            return 0
        if register == self.stack:
            return STACK
        return self.values.setdefault(register, self._generator.getrandbits(64))

    def set(self, register: str, value: int) -> None:
        """Ignore the write: LOOP decrements a counter, but this state is discarded."""

    def set_vector(self, number: int, value: int) -> None:
        """Fail: conditions do not change vector registers."""
        raise AssertionError("conditions must not change vector registers")

    def load(self, address: int, size: int) -> int:
        """Fail: conditions do not read memory."""
        raise AssertionError("conditions must not read memory")

    def store(self, address: int, size: int, value: int) -> None:
        """Fail: conditions do not change memory."""
        raise AssertionError("conditions must not change memory")


def goes_one_way(condition: Condition, stack: str) -> bool:
    """Return whether a condition has the same result in all tested states.

    The tested states are random ones and, if the condition reads at most ``MOST`` registers, all
    combinations of ``VALUES`` in these registers.

    :param stack: name of the stack pointer, which always holds the same valid address.
    """
    state, names = _Asked(stack), dict[str, None]()
    first = condition.holds(state)
    for _ in range(RANDOM):
        names |= dict.fromkeys(state.values)
        state.values = {}
        if condition.holds(state) != first:
            return False
    for values in product(VALUES, repeat=len(names)) if len(names) <= MOST else ():
        state.values = dict(zip(names, values, strict=True))
        if condition.holds(state) != first:
            return False
    return True
