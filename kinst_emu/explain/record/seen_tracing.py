"""A recorded firing of the kernel's own tracer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from emu.guest.tracer import TracerPart
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.tracer_memory import SeenChunk, SeenEcb

BREAKPOINT, CALL, PROGRAM = "breakpoint", "call", "program"  # how a firing begins


@dataclass
class SeenTracing:
    """A recorded firing of the kernel's own tracer.

    Large because each field is read by a step of the explanation.

    :param how: ``BREAKPOINT`` or ``PROGRAM``: a breakpoint in the kernel or in a program;
        ``CALL``: the kernel calls the tracer.
    :param rows: from the probed instruction to the first instruction after the firing, inclusive.
    :param stored: for each row, the words of the trap frame, the trampoline and the record that
        the row before has stored to, by address; for the first row, all of them.
    :param parts: for each row, the part of the work to which it belongs.
    :param functions: for each row, the function that it belongs to; empty in assembly code.
    :param predicates: for each evaluated predicate, the number of the row after it, and whether it
        is true.
    :param fired: number of the row that enters the tracer's main function.
    :param handled: number of the row that enters the function which gets the breakpoint; 0 if none.
    :param probe: number of the probe.
    :param original: the instruction that the breakpoint replaces; empty if there is none.
    :param frame: address of the trap frame; 0 if there is none.
    :param name: the probe's name; ``ecbs``: what is enabled for it.
    :param record_at: address of what the firing has added to the buffer; ``record``: its bytes.
    :param chunks: the memory of the tracer's trampolines.
    :param trampoline: address of the trampoline; 0 if none is executed.  ``slot``: its bytes.
    """

    command: str
    hit: int
    how: str = CALL
    rows: list[SeenInstruction] = field(default_factory=list)
    stored: list[Mapping[int, int]] = field(default_factory=list)
    parts: list[TracerPart] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    predicates: list[tuple[int, bool]] = field(default_factory=list)
    fired: int = 0
    handled: int = 0
    probe: int = 0
    process: str = ""
    pid: int = 0
    original: bytes = b""
    frame: int = 0
    name: str = ""
    ecbs: list[SeenEcb] = field(default_factory=list)
    record_at: int = 0
    record: bytes = b""
    chunks: list[SeenChunk] = field(default_factory=list)
    trampoline: int = 0
    slot: bytes = b""

    @property
    def what(self) -> str:
        """Plural name of what ``hit`` counts, for error messages."""
        return "firings"

    def count(self, part: TracerPart) -> int:
        """Return the number of instructions of a part."""
        return self.parts[:-1].count(part)
