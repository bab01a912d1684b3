"""Conditional jumps that go one way only: ``beqz zero``; ``beqz sp`` where there is a stack."""

import random
from itertools import product

from kinst.relocation.verdict import Condition

VALUES = (0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1)
STACK = 0xFFFF_FFC0_1234_5680  # a stack pointer
ZEROS = ("zero", "xzr")
MOST = 3  # registers whose values are tried in all combinations
RANDOM = 512  # states


class _Asked:
    """A state that makes up what a condition reads, and remembers which registers these are."""

    def __init__(self, stack: str) -> None:
        self.stack, self.values = stack, dict[str, int]()
        self._generator = random.Random(0)

    def get(self, register: str) -> int:
        if register in ZEROS:
            return 0
        if register == self.stack:
            return STACK
        return self.values.setdefault(register, self._generator.getrandbits(64))

    def set(self, register: str, value: int) -> None:
        """LOOP counts; the state is thrown away."""

    def set_vector(self, number: int, value: int) -> None:
        raise AssertionError("a condition changes no vector")

    def load(self, address: int, size: int) -> int:
        raise AssertionError("a condition reads no memory")

    def store(self, address: int, size: int, value: int) -> None:
        raise AssertionError("a condition changes no memory")


def goes_one_way(condition: Condition, stack: str) -> bool:
    """Whether a condition is the same in many random states, and for the outstanding values of the
    registers that it reads, in all combinations.

    :param stack: the stack pointer's name: it always points somewhere.
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
