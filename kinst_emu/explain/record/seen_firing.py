"""Data that a recorder collects about one firing of a probe."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from emu.elf.symbols import Symbol
from kinst.code.listing import ProbedInstruction
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.clause import Narration
from kinst_emu.explain.record.instruction import SeenInstruction

STACK = 128  # number of recorded bytes of the stack


@dataclass(frozen=True)
class Stack:
    """Contents of memory from the stack pointer upward.

    :param content: whole words; less than ``STACK`` bytes if no more is mapped.
    """

    address: int
    content: bytes


@dataclass
class SeenFrame:
    """A trap frame built by the kernel's vectors.

    :param row: number of the row that is executed next when the handler is called.
    :param breakpoint: address of the breakpoint.
    :param before: bytes of the frame when the handler is called; ``after``: its bytes when the
        handler has returned, if the kernel's return path loads them (on amd64 the handler restores
        the registers itself).
    :param called: the machine when the handler is called, which is not a kernel instruction;
        ``stack``: its stack; ``words`` and ``written`` as in ``SeenMemory``.
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
    """A store made by an instruction.

    :param address: virtual address; None if the recorded instruction does not determine it.
    :param physical: physical address.
    :param before: the bytes before the store; ``after``: the bytes after it.
    """

    address: int | None
    physical: int
    before: bytes
    after: bytes


@dataclass
class SeenMemory:
    """Record of the memory changes during a firing.

    :param stacks: by row number, the stack before the row.
    :param words: by row number, the words around the stack pointer, by address, that have changed
        since the row before (or since the handler was called).
    :param written: by row number, the words of the stacks that the row before (or the CPU, taking
        the exception) has stored to, whether or not they changed.
    :param stores: stores of the displaced instruction, by the number of the row in the trampoline;
        for an emulated instruction, its push, by the number of the last row.
    :param devices: stores of the displaced instruction to devices: (physical address, bytes,
        value).
    """

    stacks: dict[int, Stack] = field(default_factory=dict)
    words: dict[int, Mapping[int, int]] = field(default_factory=dict)
    written: dict[int, frozenset[int]] = field(default_factory=dict)
    stores: dict[int, list[SeenStore]] = field(default_factory=dict)
    devices: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass
class SeenMistake:
    """A deliberate mistake (``--what-if``) and its consequences.

    :param kind: the mistake; empty if there is none.
    :param other: the instruction whose trampoline was written over this one's.
    :param strayed: number of the row where the run left the trampoline for an unexpected address;
        0 if it did not.
    :param ended: error that ended the call; empty if the call completed.
    """

    kind: str = ""
    other: ProbedInstruction | None = None
    strayed: int = 0
    ended: str = ""


@dataclass
class SeenFiring:
    """A recorded firing of a probe: instructions, trap frames, trampoline and memory changes.

    :param asked: the requested instruction and probe.
    :param original: bytes of the probed instruction; ``patched``: the same bytes while the probe is
        enabled.
    :param rows: from the breakpoint to the instruction where the run continues; for a tail call
        that is a return, one more row where the called function has returned.
    :param frames: trap frames of the breakpoint and, if there is one, of the second breakpoint.
    :param slot: address of the trampoline, 0 if there is none; ``trampoline``: its bytes.
    :param second: address of the second breakpoint; 0 if there is none.
    :param fired: number of the row before which the probe fires and its clause is run.
    :param narration: what the clause did, if there is one.
    :param memory: memory changes.
    :param mistake: the deliberate mistake; its kind is empty if there is none.
    :param layout: fields of a trap frame: name -> (byte offset, bytes).
    :param entry: how the CPU finds the vector, if the architecture has a table for that.
    :param complete: whether the run has continued after the firing.
    :param between: for a tail call that is a return, the number of instructions from where the run
        continues to where the probe fires; 0 if the probe fires at the breakpoint.
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
        """Function that contains the probed instruction."""
        return self.asked.function

    @property
    def hit(self) -> int:
        """Number of the recorded execution of the instruction, counted from 1."""
        return self.asked.hit

    @property
    def last(self) -> int:
        """Index of the row at which the run continues after the firing."""
        return len(self.rows) - (2 if self.between else 1)
