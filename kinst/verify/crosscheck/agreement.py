"""How much of a call, or of many, agreed."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Agreement:
    """How much of a call, or of many, agreed.

    :param encodings: of displaced instructions that fired on both, by verdict.
    :param reasons: how often the models' known differences were met.
    """

    calls: int = 0
    instructions: int = 0
    firings: int = 0
    functions: set[str] = field(default_factory=set)
    encodings: dict[str, set[bytes]] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)  # of the breakpoints that fired
    reasons: Counter[str] = field(default_factory=Counter)
    refused: int = 0  # instructions executed that cannot be probed

    def add(self, other: "Agreement") -> None:
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
        return sum(map(len, self.encodings.values()))
