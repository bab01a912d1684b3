"""Puts functions and the programs of probes together into one piece of BPF code."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dtrace.bpf.assembler import Assembler
from dtrace.bpf.encoding import SIZE, Instruction, Jump
from dtrace.bpf.encoding import Alu as Operation
from dtrace.bpf.layout import Context, Region

CONTEXT = 6  # the register that holds it, in all functions


@dataclass
class Linked:
    """:param offsets: the number of the first 8-byte slot of each function, by name."""

    code: bytes
    offsets: dict[str, int]
    instructions: list[Instruction]


@dataclass
class Linker:
    """Collects functions, and links them."""

    _functions: dict[str, Assembler] = field(default_factory=dict)

    def add(self, name: str, function: Assembler) -> None:
        self._functions[name] = function

    def add_probe(self, name: str, clauses: Sequence[str], always: bool) -> None:
        """A probe's own program: it calls its clauses in order, while tracing is on.

        :param always: the probe fires whether it is on or not (BEGIN, END, ERROR).
        """
        out = Assembler()
        end = out.label()
        out.move(CONTEXT, 1)
        for number, clause in enumerate(clauses):
            if not always:
                out.address(1, Region.STATE, 0)
                out.load(0, 1, 0)
                out.branch_constant(Jump.JNE, 0, 0, end)
            out.load(2, CONTEXT, Context.FIRST)
            if number:
                out.alu_constant(Operation.ADD, 2, number)
            out.store(CONTEXT, Context.CLAUSE, 2)
            out.move(1, CONTEXT)
            out.call(clause)
        out.place(end)
        out.constant(0, 0)
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
        instructions: list[Instruction] = []
        slot = 0
        for function in self._functions.values():
            for number, i in enumerate(function.instructions):
                called = function.calls.get(number)
                if called is not None:
                    i = replace(i, immediate=offsets[called] - slot - 1)
                instructions.append(i)
                slot += 1 if i.wide is None else 2
        code = b"".join(i.encode() for i in instructions)
        assert len(code) == SIZE * slot
        return Linked(code, offsets, instructions)
