"""Puts functions and the programs of probes together into one piece of BPF code."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import HELPER, SIZE, BpfInstruction, BpfJump, Class
from dtrace.bpf.encoding import Alu as Operation
from dtrace.bpf.layout import ARGUMENTS, ContextOffset, Region

CONTEXT = 6  # the register that holds it, in all functions


@dataclass
class Linked:
    """:param offsets: the number of the first 8-byte slot of each function, by name.
    :param arguments: how many arguments of its probe each function reads, from the first; of a
        probe's own program, those of its clauses.
    :param actions: of each 8-byte slot, as of ``Assembler``.
    """

    code: bytes
    offsets: dict[str, int]
    instructions: list[BpfInstruction]
    arguments: dict[str, int] = field(default_factory=dict)
    actions: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def helpers(self) -> set[int]:
        """The numbers of the helpers that are called."""
        return {i.immediate for i in self.instructions
                if i.opcode == Class.JMP | BpfJump.CALL and i.source == HELPER}


@dataclass
class Linker:
    """Collects functions, and links them."""

    _functions: dict[str, Assembler] = field(default_factory=dict)

    def add(self, name: str, function: Assembler) -> None:
        self._functions[name] = function

    def add_probe(self, name: str, clauses: Sequence[str], always: bool) -> None:
        """A probe's own program: it calls its clauses in order, while tracing is on.

        Whoever calls it has looked whether it is, and put the first clause into the context.

        :param always: the probe fires whether it is on or not (END, ERROR).
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
        """:raises ProgramTooLarge: when a function is too large for its jumps."""
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
                    i = replace(i, immediate=offsets[called] - slot - 1)
                instructions.append(i)
                slot += 1 if i.wide is None else 2
        code = b"".join(i.encode() for i in instructions)
        assert len(code) == SIZE * slot
        own = {name: _arguments(f.instructions) for name, f in self._functions.items()}
        return Linked(code, offsets, instructions, {
            name: max((own[called] for called in f.calls.values()), default=own[name])
            for name, f in self._functions.items()}, actions)


def _arguments(instructions: Sequence[BpfInstruction]) -> int:
    """Loads of them go by the register that holds the context, in all functions."""
    return max((1 + (i.offset - ContextOffset.ARGUMENTS) // 8 for i in instructions
                if i.opcode & 7 == Class.LDX and i.source == CONTEXT
                and 0 <= i.offset - ContextOffset.ARGUMENTS < 8 * ARGUMENTS), default=0)
