"""Relocator for ``kinst trial --relocator`` that uses this project's own tables (docs/trial.md).

It reads requests and writes answers, one JSON object on each line.

    kinst trial --arch amd64 --assemble 'jne 0x40000100; call *8(%r12)' \\
        --relocator 'python examples/relocator.py'
"""

import json
import sys

from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Refuse, Rewrite


class State:
    """Registers of a request; loads ask the trial for memory, and stores go into the answer."""

    def __init__(self, registers: dict[str, int]) -> None:
        self.registers, self.changed = registers, dict[str, int]()
        self.vectors: dict[str, int] = {}
        self.stores: list[tuple[int, str]] = []

    def get(self, register: str) -> int:
        """Return the value of a general-purpose register."""
        if register in ("xzr", "zero"):
            return 0
        return self.changed.get(register, self.registers[register])

    def set(self, register: str, value: int) -> None:
        """Change a general-purpose register."""
        if register not in ("xzr", "zero"):
            self.changed[register] = value & (1 << 64) - 1

    def set_vector(self, number: int, value: int) -> None:
        """Change a vector register."""
        self.vectors[str(number)] = value

    def load(self, address: int, size: int) -> int:
        """Ask the trial for the content of memory, and return the content as a number."""
        answer({"load": address, "size": size})
        return int.from_bytes(bytes.fromhex(request()["bytes"]), "little")

    def store(self, address: int, size: int, value: int) -> None:
        """Record a store for the answer."""
        data = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        self.stores.append((address, data.hex()))


def request() -> dict:  # type: ignore[type-arg]
    """Read a request, or exit at the end of the input."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return dict(json.loads(line))


def answer(row: dict[str, object]) -> None:
    """Write an answer to standard output."""
    print(json.dumps(row), flush=True)


def main() -> None:
    """Answer requests until the input ends."""
    asked: dict = {}  # type: ignore[type-arg]
    while True:
        row = request()
        if "state" in row:  # the initial state for emulating the previous request's instruction
            emulate(asked, row)
        else:
            asked = row
            relocate(asked)


def relocate(asked: dict) -> None:  # type: ignore[type-arg]
    """Answer a request to displace an instruction."""
    trap, address, code = TRAPS[asked["architecture"]], asked["address"], bytes.fromhex(
        asked["bytes"])
    _length, verdict = trap.instructions.classify(code, address)
    if isinstance(verdict, Refuse):
        answer({"id": asked["id"], "refuse": verdict.reason})
    elif isinstance(verdict, Copy | Rewrite):
        body, end = trap.trampoline(asked["trampoline"], code, verdict, address + len(code))
        row: dict[str, object] = {"id": asked["id"], "bytes": body.hex()}
        # "back" is the offset of the breakpoint that ends the trampoline.
        answer(row | {"back": end} if trap.second_breakpoint else row)
    else:
        answer({"id": asked["id"], "emulate": True})


def emulate(asked: dict, row: dict) -> None:  # type: ignore[type-arg]
    """Emulate an instruction from a given state, and answer with the changes."""
    code = bytes.fromhex(asked["bytes"])
    _length, verdict = TRAPS[asked["architecture"]].instructions.classify(code, asked["address"])
    state = State(row["state"])
    assert not isinstance(verdict, Copy | Rewrite | Refuse)
    pc = verdict.next_pc(state)
    answer({"pc": pc, "registers": state.changed, "vectors": state.vectors,
            "stores": state.stores})


if __name__ == "__main__":
    main()
