"""A kernel booted, a probe made, a call: what became of one firing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtrace.calls import Evaluation, check, parse
from dtrace.debug_data import Sources
from dtrace.kernel_types import kernel_types
from dtrace.prototypes import Prototypes
from dtrace.source_text import SourceText
from dtrace.symbols import sized_functions
from dtrace.threads import structure
from dwarf.debug_file import DebugDataError
from dwarf.values import CStruct
from emu.architectures import arch_of
from emu.call import DEFAULT_LIMIT, Caller
from emu.elf import Image
from emu.errors import KinstError
from emu.guests import guest_of
from emu.progress import PROGRESS
from emu.symbols import Symbol
from images import catalog
from images.boots import booted
from images.shell import with_userland
from kinst.code.listing import ProbedInstruction
from kinst_emu.explain.recorder import FiringRecorder, SeenFiring
from kinst_emu.explain.steps import Step, Words, steps, what_if
from kinst_emu.explain.system_call import CallRecorder, SeenCall
from kinst_emu.explain.system_call_steps import call_steps

MAX_DIGITS = 12
LIMIT = 100_000  # instructions of a call that goes wrong
LABELLED = 1 << 12  # bytes behind a label of assembly that are spoken of by it
MEMORY = 512 << 20
TEACHING_SOURCE = Path(catalog.__file__).parent / "teaching"
RACES_SOURCE = TEACHING_SOURCE.with_name("races")


@dataclass(frozen=True)
class Asked:
    """:param place: ``FUNCTION:OFFSET``.
    :param call: what makes the probe fire.
    :param hit: which of its firings, from 1.
    :param clause: D for it; empty: none.
    :param what_if: what is to be done wrong, too; empty: nothing.
    :param limit: instructions after which the call is given up.
    :param memory: of the guest, bytes.
    :param sources: trees with the kernel's source.
    """

    place: str
    call: str
    hit: int = 1
    clause: str = ""
    what_if: str = ""
    limit: int = DEFAULT_LIMIT
    memory: int = MEMORY
    sources: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Explained:
    """:param wrong: the same firing done wrong, when that was asked for.
    :param table: the function's instructions.
    """

    image: Image
    asked: Asked
    firing: SeenFiring
    wrong: SeenFiring | None
    steps: list[Step]
    words: Words
    table: Sequence[ProbedInstruction]

    @property
    def title(self) -> str:
        firing = self.firing
        return (f"A breakpoint at {firing.function.name}:{firing.instruction.offset} in "
                f"{catalog.described(self.image)}")

    @property
    def about(self) -> str:
        return (f"{self.image.path.name} (build id {self.image.build_id or 'none'}), "
                f"{self.asked.call}; every number is of one run.")


def explain(image: Image, asked: Asked) -> Explained:
    """:raises KinstError: when there is no such instruction, firing, or call."""
    program, trees = parse(asked.call), source_trees(image, asked.sources)
    function, offset = place(image, asked.place)
    check(image, program, prototypes := Prototypes(image))
    machine = booted(image, asked.memory)
    base = machine.snapshot() if asked.what_if else None
    recorder = FiringRecorder(machine, function, offset, asked.hit)
    if asked.clause:
        recorder.clause(asked.clause, prototypes.types())
    caller = Caller(machine, asked.limit)
    placed = caller.placed()
    with PROGRESS.working(f"calling {asked.call}"):
        evaluation = Evaluation(caller, prototypes)
        firing = recorder.record(lambda: evaluation.run(program))
    words, wrong = words_of(image, trees), None
    told = steps(firing, recorder.table, words)
    if base is not None:
        machine.restore(base)
        caller.placed_again(placed)
        caller.limit = min(asked.limit, LIMIT)
        other = FiringRecorder(machine, function, offset, asked.hit, asked.what_if)
        with PROGRESS.working(f"calling {asked.call}, wrongly"):
            again = Evaluation(caller, prototypes)
            wrong = other.record(lambda: again.run(program))
        told += what_if(firing, wrong, words)
    return Explained(image, asked, firing, wrong, told, words, recorder.table)


@dataclass(frozen=True)
class ExplainedCall:
    """A system call."""

    image: Image
    seen: SeenCall
    steps: list[Step]

    @property
    def title(self) -> str:
        return f"{self.seen.function.name} in {catalog.described(self.image)}, called by a program"

    @property
    def about(self) -> str:
        return (f"{self.image.path.name} (build id {self.image.build_id or 'none'}), "
                f"$ {self.seen.command}; every number is of one run.")


def explain_call(image: Image, name: str, command: str, hit: int, limit: int,
                 memory: int) -> ExplainedCall:
    """A system call that a command makes, in our userland.

    :param name: of the call: open or sys_open.
    :raises KinstError: when there is no such call, or the command does not make it.
    """
    types = kernel_types(image)
    thread = structure(types, guest_of(image, arch_of(image).name).threads.thread)
    if thread is None:
        raise KinstError(f"{image.path}: has no types (debug data) to find a trap frame by")
    machine = booted(with_userland(image), memory)

    def frame() -> int:
        at = machine.read_u64(machine.read_register(machine.guest.per_cpu))
        return int(CStruct(thread, at, machine)[machine.guest.threads.frame])

    def pid() -> int:
        at = machine.read_u64(machine.read_register(machine.guest.per_cpu))
        value: Any = CStruct(thread, at, machine) if at else 0
        for _structure, member in machine.guest.members["pid"] if at else ():
            value = value[member]
        return int(value)

    recorder = CallRecorder(machine, name, command, hit, limit, frame, pid)
    with PROGRESS.working(f"running {command}"):
        seen = recorder.record()
    return ExplainedCall(image, seen, call_steps(seen, recorder.calls, words_of(image)))


def place(image: Image, text: str) -> tuple[Symbol, int]:
    """``FUNCTION:OFFSET``, or kdtrace's ``kinst::FUNCTION:OFFSET``.

    :raises KinstError: when it is none.
    """
    parts = text.split(":")
    if len(parts) == 4 and parts[0] == "kinst":  # as kdtrace has it
        text = ":".join(parts[2:])
    name, colon, digits = text.rpartition(":")
    if not colon or not name.strip(":"):
        raise KinstError(f"'{text}': say FUNCTION:OFFSET, like strlen:4")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < MAX_DIGITS):
        raise KinstError(f"'{text}': the offset is a decimal number of bytes, like strlen:4")
    return sized_functions(image, name)[0], int(digits)


def words_of(image: Image, trees: SourceText | None = None) -> Words:
    """How the places of a kernel are spoken of.

    :param trees: where the text of its source is.
    """
    sources = Sources(image)

    def located(address: int) -> str:
        try:
            line = sources.line(address) if sources.known else ""
        except DebugDataError:
            return ""
        return "" if line == "?" else line

    def source(address: int) -> str:
        return shortened(located(address))

    def text(address: int) -> str:
        return trees.line(located(address)) if trees is not None else ""

    def where(address: int) -> str:
        label = None if image.symbols.function_at(address) else image.symbols.label_at(address)
        return (f"{label.name}+{address - label.address:#x}" if label is not None
                and address - label.address < LABELLED else image.symbols.where(address))

    arch = arch_of(image)
    return Words(arch, guest_of(image, arch.name), where, source, text)


def shortened(location: str) -> str:
    """``file:line``, without what stands before a kernel's own directories."""
    return location.rpartition("/sys/")[2] or location


def source_trees(image: Image, trees: Sequence[Path]) -> SourceText:
    """Where the text of a kernel's source is: the teaching kernels' is known."""
    own = [TEACHING_SOURCE, RACES_SOURCE] if catalog.is_teaching(image) else []
    return SourceText([*trees, *own])
