"""Control flow within one function: which branches decide whether an instruction is executed.

An instruction depends on a branch if one of the branch's two ways always leads to the instruction
and the other need not (control dependence: Ferrante, Ottenstein and Warren, 1987).
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from dtrace.flow.code import KernelCode
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from kinst.code.listing import MAX_FUNCTION
from kinst.code.transfer import Transfer, ending
from kinst.relocation.trap import TRAPS

EXIT = -1  # the block that follows every return


@dataclass(frozen=True)
class Block:
    """Instructions that are always executed together.

    :param addresses: the instructions' addresses.
    :param following: first addresses of the blocks that may follow; EXIT: the function ends.
    :param branches: whether the last instruction is a branch, conditional or to a computed address.
    """

    addresses: tuple[int, ...]
    following: tuple[int, ...]
    branches: bool


class ControlFlow:
    """Basic blocks of one function.

    Jumps to computed addresses (switch statements) lead to every block that nothing else leads to.

    :param ends: addresses of functions that do not return.
    :raises KinstError: if the function's code cannot be decoded.
    """

    def __init__(self, code: KernelCode, function: Symbol, ends: Collection[int] = ()) -> None:
        if not 0 < function.size <= MAX_FUNCTION:
            raise KinstError(f"{function.name}: its size, {function.size} bytes, is not known or "
                             f"more than {MAX_FUNCTION}")
        self.function = function
        self.blocks: dict[int, Block] = {}
        self._starts: dict[int, int] = {}  # address of an instruction -> its block
        self._build(code, ends)
        self._depends: dict[int, frozenset[int]] = {}

    def _build(self, code: KernelCode, ends: Collection[int]) -> None:
        trap, low = TRAPS[code.arch.name], self.function.address
        high = low + self.function.size
        rows: dict[int, tuple[int, tuple[int, ...], bool, bool]] = {}
        starts, address, computed = {low}, low, list[int]()
        while address < high and (instruction := code.instruction(address)):
            end = ending(trap, instruction, address)
            following: tuple[int, ...] = (end.after,)
            branches = False
            if end.transfer is Transfer.BRANCH and end.target is not None:
                following, branches = (end.target, end.after), True
            elif end.transfer is Transfer.JUMP and end.target is not None:
                following = (end.target,)
            elif end.transfer is Transfer.INDIRECT:
                following, branches = (), True
                computed.append(address)
            elif end.transfer in (Transfer.RETURN, Transfer.TRAP_RETURN) or (
                    end.transfer is Transfer.CALL and self._target(code, address) in ends):
                following = (EXIT,)
            following = tuple(to if low <= to < high else EXIT for to in following)
            last = following != (end.after,)
            rows[address] = end.after, following, branches, last
            if last:
                starts |= {end.after, *following} - {EXIT}
            address = end.after
        self._divide(rows, starts, computed)

    @staticmethod
    def _target(code: KernelCode, address: int) -> int | None:
        trap = TRAPS[code.arch.name]
        _length, verdict = trap.instructions.classify(code.instruction(address), address)
        target: int | None = trap.instructions.call_target(None, verdict)
        return target

    def _divide(self, rows: dict[int, tuple[int, tuple[int, ...], bool, bool]], starts: set[int],
                computed: list[int]) -> None:
        addresses: list[int] = []
        reached = {self.function.address}
        for address, (after, following, branches, last) in rows.items():
            addresses.append(address)
            if last or after in starts or after not in rows:
                if not last and after not in rows:
                    following = (EXIT,)  # the code ends here, or cannot be decoded
                block = Block(tuple(addresses), following, branches)
                self.blocks[addresses[0]] = block
                self._starts |= dict.fromkeys(addresses, addresses[0])
                reached.update(following)
                addresses = []
        # A branch into the middle of an instruction cannot be followed.
        for start, block in list(self.blocks.items()):
            known = tuple(to if to in self.blocks or to == EXIT else EXIT
                          for to in block.following)
            if block.addresses[-1] in computed:
                known = tuple(to for to in self.blocks if to not in reached) or (EXIT,)
            if known != block.following:
                self.blocks[start] = Block(block.addresses, known, block.branches)

    # -- dominance --------------------------------------------------------------------------------

    def _order(self) -> list[int]:
        """Return the blocks in reverse postorder of the reversed graph, from EXIT.

        Blocks from which no return is reached (endless loops) are made to reach EXIT.
        """
        before: dict[int, list[int]] = {EXIT: []}
        for start, block in self.blocks.items():
            for to in block.following:
                before.setdefault(to, []).append(start)
        seen: set[int] = set()
        order: list[int] = []
        roots: Iterable[int] = (EXIT, *sorted(self.blocks, reverse=True))
        for root in roots:
            if root in seen:
                continue
            seen.add(root)
            if root != EXIT:
                block = self.blocks[root]
                self.blocks[root] = Block(block.addresses, (*block.following, EXIT),
                                          block.branches)
            waiting: list[tuple[int, Iterator[int]]] = [(root, iter(before.get(root, ())))]
            found = list[int]()
            while waiting:
                at, rest = waiting[-1]
                new = next((n for n in rest if n not in seen), None)
                if new is None:
                    found.append(at)
                    waiting.pop()
                else:
                    seen.add(new)
                    waiting.append((new, iter(before.get(new, ()))))
            order += found[::-1]
        return order

    @cached_property
    def _postdominator(self) -> dict[int, int]:
        """Return each block's immediate postdominator (Cooper, Harvey and Kennedy, 2001)."""
        order = self._order()
        rank = {block: n for n, block in enumerate(order)}
        dominator = {EXIT: EXIT}
        changed = True
        while changed:
            changed = False
            for start in order:
                if start == EXIT:
                    continue
                known = [to for to in self.blocks[start].following if to in dominator]
                if not known:
                    continue
                best = known[0]
                for one in known[1:]:
                    other = one
                    while best != other:
                        while rank[best] > rank[other]:
                            best = dominator[best]
                        while rank[other] > rank[best]:
                            other = dominator[other]
                if dominator.get(start) != best:
                    dominator[start] = best
                    changed = True
        return dominator

    # -- questions --------------------------------------------------------------------------------

    def contains(self, address: int) -> bool:
        """Return whether an instruction of the function begins at an address."""
        return address in self._starts

    @cached_property
    def branches(self) -> frozenset[int]:
        """Addresses of the branches, conditional or to a computed address."""
        return frozenset(block.addresses[-1] for block in self.blocks.values() if block.branches)

    def block_of(self, address: int) -> tuple[int, ...]:
        """Return the addresses of the instructions of an instruction's block."""
        start = self._starts.get(address)
        return () if start is None else self.blocks[start].addresses

    def depends(self, address: int) -> frozenset[int]:
        """Return the addresses of the branches that decide whether an instruction is executed."""
        block = self._starts.get(address)
        if block is None:
            return frozenset()
        if block not in self._depends:
            found = set()
            for start, one in self.blocks.items():
                if not one.branches:
                    continue
                stop = self._postdominator.get(start)
                for to in one.following:
                    at = to
                    while at not in (stop, EXIT):
                        if at == block:
                            found.add(one.addresses[-1])
                            break
                        at = self._postdominator.get(at, EXIT)
            self._depends[block] = frozenset(found)
        return self._depends[block]
