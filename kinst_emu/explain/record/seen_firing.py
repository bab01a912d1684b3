"""What a recorder saw of one firing of one probe."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from emu.elf.symbols import Symbol
from kinst.code.listing import ProbedInstruction
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.clause import Narration
from kinst_emu.explain.record.instruction import SeenInstruction

STACK = 128  # bytes of the stack that are kept


@dataclass(frozen=True)
class Stack:
    """What the stack pointer leads to.

    :param content: whole words; less than ``STACK`` bytes where no more is mapped.
    """

    address: int
    content: bytes


@dataclass
class SeenFrame:
    """A trap frame, where the kernel's vectors have built it.

    :param row: the number of the row before which the seam was come to.
    :param before: its bytes there; ``after`` when the handler has answered, where the kernel's
        return path takes them from there (on amd64 the handler restores the registers itself).
    :param called: the machine where the handler is called, which is no instruction of the kernel's;
        ``stack`` what is on its stack, ``words`` and ``written`` as in ``SeenMemory``.
    """

    row: int
    address: int
    breakpoint: int
    before: bytes
    called: SeenInstruction
    stack: Stack
    words: Mapping[int, int]
    written: frozenset[int] = frozenset()
    after: bytes = b""


@dataclass(frozen=True)
class SeenStore:
    """What an instruction has stored.

    :param address: where; None: at an address that it is not seen to have computed.
    :param physical: where that is in the machine's memory.
    :param before: the bytes that were there; ``after`` those that it left.
    """

    address: int | None
    physical: int
    before: bytes
    after: bytes


@dataclass
class SeenMemory:
    """What happened to memory at a firing.

    :param stacks: by the number of the row before which it was so.
    :param words: by the number of a row, the words around the stack pointer that are, before it,
        not what they were before the row before (or where the handler was called): by address.
    :param written: by the number of a row, the words of the stacks that the row before it (or the
        CPU, taking the exception) has stored, whatever they held.
    :param stores: of the displaced instruction, by the number of the row in the trampoline that
        made them; of one that is emulated, what it pushed, by that of the last.
    :param devices: what the displaced instruction has stored to devices: (physical address, bytes,
        value).
    """

    stacks: dict[int, Stack] = field(default_factory=dict)
    words: dict[int, Mapping[int, int]] = field(default_factory=dict)
    written: dict[int, frozenset[int]] = field(default_factory=dict)
    stores: dict[int, list[SeenStore]] = field(default_factory=dict)
    devices: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass
class SeenMistake:
    """What was done wrong on purpose (``--what-if``), and what came of it.

    :param kind: which mistake; empty: none.
    :param other: the instruction whose trampoline was written over this one's.
    :param strayed: the number of the row where a run left the trampoline for a place that nobody
        waits for; 0: it did not.
    :param ended: why the call did not come to its end; empty: it did.
    """

    kind: str = ""
    other: ProbedInstruction | None = None
    strayed: int = 0
    ended: str = ""


@dataclass
class SeenFiring:
    """What a recorder saw of one firing; addresses and values are the machine's.

    :param asked: where the instruction is, and of which probe.
    :param original: the bytes at the probed instruction; ``patched`` while the probe is enabled.
    :param rows: from the breakpoint to the instruction where the run goes on; of a tail call that
        is a return, one more, where the function that it goes to has returned.
    :param frames: of the breakpoint, and of the second one where there is one.
    :param slot: the trampoline's address, 0: there is none; ``trampoline`` its bytes.
    :param second: the address of the second breakpoint; 0: there is none.
    :param fired: the number of the row before which the probe fires: its clause is run there.
    :param narration: what the clause did, where there is one.
    :param memory: what happened to memory.
    :param mistake: what was done wrong on purpose; its kind is empty when nothing was.
    :param layout: of a trap frame: field -> (byte offset, bytes).
    :param entry: how the CPU comes to the vector, where the architecture has a table for that.
    :param complete: whether the run has gone on.
    :param between: of a tail call that is a return, how many instructions are executed from where
        the run goes on to where the probe fires; 0: the probe fires at the breakpoint.
    """

    architecture: str
    asked: ChosenPlace
    instruction: ProbedInstruction
    number: int
    original: bytes = b""
    patched: bytes = b""
    rows: list[SeenInstruction] = field(default_factory=list)
    frames: list[SeenFrame] = field(default_factory=list)
    slot: int = 0
    trampoline: bytes = b""
    second: int = 0
    fired: int = 0
    narration: Narration | None = None
    memory: SeenMemory = field(default_factory=SeenMemory)
    mistake: SeenMistake = field(default_factory=SeenMistake)
    layout: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    entry: str = ""
    complete: bool = False
    between: int = 0

    @property
    def function(self) -> Symbol:
        return self.asked.function

    @property
    def hit(self) -> int:
        return self.asked.hit

    @property
    def last(self) -> int:
        """The number of the row where the run goes on."""
        return len(self.rows) - (2 if self.between else 1)
