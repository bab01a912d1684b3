"""Statistics of calls that were executed with the same results on two machines."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Agreement:
    """Statistics of one or more calls that were executed with the same results on two machines.

    :param encodings: verdict -> encodings of displaced instructions that fired on both machines.
    :param reasons: known difference between the CPU models -> how often it occurred.
    """

    calls: int = 0
    instructions: int = 0
    firings: int = 0
    functions: set[str] = field(default_factory=set)
    encodings: dict[str, set[bytes]] = field(default_factory=dict)
    # size in bytes of a breakpoint -> number of such breakpoints that fired
    lengths: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    refused: int = 0  # number of executed instructions that cannot be probed

    def add(self, other: "Agreement") -> None:
        """Add the counts of other calls."""
        self.calls += other.calls
        self.instructions += other.instructions
        self.firings += other.firings
        self.refused += other.refused
        self.functions |= other.functions
        self.lengths += other.lengths
        self.reasons += other.reasons
        for name, codes in other.encodings.items():
            self.encodings.setdefault(name, set()).update(codes)

    def distinct(self) -> int:
        """Return the number of distinct encodings that fired on both machines."""
        return sum(map(len, self.encodings.values()))
