"""Linker that joins functions and probe programs into one block of BPF code."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import HELPER, SIZE, BpfInstruction, BpfJump, Class
from dtrace.bpf.encoding import Alu as Operation
from dtrace.bpf.layout import ARGUMENTS, ContextOffset, Region

CONTEXT = 6  # register that holds the context's address in all functions


@dataclass
class Linked:
    """Linked BPF code, and tables that describe its functions.

    :param offsets: the number of the first 8-byte slot of each function, by name.
    :param arguments: the number of leading probe arguments that each function reads; for a probe's
        program, the maximum over its clauses.
    :param actions: (action, storing) of each 8-byte slot, as in ``Assembler``.
    """

    code: bytes
    offsets: dict[str, int]
    instructions: list[BpfInstruction]
    arguments: dict[str, int] = field(default_factory=dict)
    actions: list[tuple[int, bool]] = field(default_factory=list)

    @functools.cached_property
    def helpers(self) -> set[int]:
        """Numbers of the helpers that the code calls."""
        return {i.immediate for i in self.instructions
                if i.opcode == Class.JMP | BpfJump.CALL and i.source == HELPER}


@dataclass
class Linker:
    """Linker that collects BPF functions and joins them into one block of code."""

    _functions: dict[str, Assembler] = field(default_factory=dict)

    def add(self, name: str, function: Assembler) -> None:
        """Add a function under a name."""
        self._functions[name] = function

    def add_probe(self, name: str, clauses: Sequence[str], always: bool) -> None:
        """Add a probe's program, which calls the probe's clauses in order while tracing is on.

        The caller checks whether tracing is on before the first clause, and stores the first
        clause's number in the context.

        :param always: the probe fires even after tracing has ended (END, ERROR).
        """
        out = Assembler()
        end = out.label()
        if len(clauses) > 1:
            out.move(CONTEXT, 1)
        for number, clause in enumerate(clauses):
            if number:
                if not always:
                    out.address(1, Region.STATE, 0)
                    out.load(0, 1, 0)
                    out.branch_constant(BpfJump.JNE, 0, 0, end)
                out.load(2, CONTEXT, ContextOffset.FIRST)
                out.alu_constant(Operation.ADD, 2, number)
                out.store(CONTEXT, ContextOffset.CLAUSE, 2)
                out.move(1, CONTEXT)
            out.call(clause)
        out.place(end)
        out.leave()
        self.add(name, out)

    def link(self) -> Linked:
        """Link all functions in the order in which they were added.

        :raises ProgramTooLarge: if a function is too large for its jumps.
        """
        offsets: dict[str, int] = {}
        at = 0
        for name, function in self._functions.items():
            function.finish()
            offsets[name] = at
            at += function.at
        instructions: list[BpfInstruction] = []
        slot = 0
        actions: list[tuple[int, bool]] = []
        for function in self._functions.values():
            for number, i in enumerate(function.instructions):
                actions += [function.actions[number]] * (1 if i.wide is None else 2)
                called = function.calls.get(number)
                if called is not None:
                    i = i._replace(immediate=offsets[called] - slot - 1)
                instructions.append(i)
                slot += 1 if i.wide is None else 2
        code = b"".join(i.encode() for i in instructions)
        assert len(code) == SIZE * slot
        own = {name: _arguments(f.instructions) for name, f in self._functions.items()}
        return Linked(code, offsets, instructions, {
            name: max((own[called] for called in f.calls.values()), default=own[name])
            for name, f in self._functions.items()}, actions)


def _arguments(instructions: Sequence[BpfInstruction]) -> int:
    """Return how many probe arguments a function needs: 1 + the highest index that it loads."""
    return max((1 + (i.offset - ContextOffset.ARGUMENTS) // 8 for i in instructions
                if i.opcode & 7 == Class.LDX and i.source == CONTEXT
                and 0 <= i.offset - ContextOffset.ARGUMENTS < 8 * ARGUMENTS), default=0)
