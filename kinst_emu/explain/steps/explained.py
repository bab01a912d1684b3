"""A kernel booted, a probe made, a call: what became of one firing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtrace.calls.calls import Evaluation, check, parse
from dtrace.calls.prototypes import Prototypes
from dtrace.debug.debug_data import Sources
from dtrace.debug.source_text import SourceText
from dtrace.descriptions.code_places import code_places
from dwarf.debug_file import DebugDataError
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.call import DEFAULT_LIMIT, Caller
from images import catalog
from images.boots import booted
from images.shell import with_userland
from kinst.code.listing import ProbedInstruction
from kinst_emu.explain.record.chosen import chosen, end_of
from kinst_emu.explain.record.context_switch import SwitchRecorder
from kinst_emu.explain.record.page_fault import FaultRecorder
from kinst_emu.explain.record.recorder import FiringRecorder
from kinst_emu.explain.record.running import RunningThread
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.record.system_call import CallRecorder
from kinst_emu.explain.steps.context_switch_steps import switch_steps
from kinst_emu.explain.steps.firing_steps import steps
from kinst_emu.explain.steps.page_fault_steps import fault_steps
from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.steps.system_call_steps import call_steps
from kinst_emu.explain.steps.way import Way, entry_way, switch_way
from kinst_emu.explain.steps.what_if_steps import what_if
from kinst_emu.explain.steps.words import Words

PAGE_FAULT, CONTEXT_SWITCH = "page-fault", "context-switch"
MAX_DIGITS = 12
LIMIT = 100_000  # instructions of a call that goes wrong
LABELLED = 1 << 12  # bytes behind a label of assembly that are spoken of by it
MEMORY = 512 << 20
TEACHING_SOURCE = Path(catalog.__file__).parent / "teaching"
RACES_SOURCE = TEACHING_SOURCE.with_name("races")


@dataclass(frozen=True)
class Asked:
    """What is to be explained.

    :param place: ``FUNCTION:OFFSET``, or an entry or a return, of an inline function, too.
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
        probe = f" ({firing.asked.probe})" if firing.asked.probe else ""
        return (f"A breakpoint at {firing.function.name}:{firing.instruction.offset}{probe} in "
                f"{catalog.described(self.image)}")

    @property
    def about(self) -> str:
        return (f"{self.image.path.name} (build id {self.image.build_id or 'none'}), "
                f"{self.asked.call}; every number is of one run.")


def explain(image: Image, asked: Asked) -> Explained:
    """:raises KinstError: when there is no such instruction, firing, or call."""
    program, trees = parse(asked.call), source_trees(image, asked.sources)
    check(image, program, prototypes := Prototypes(image))
    if end_of(asked.place) is None:
        code_places(image, asked.place)  # what cannot be is known before the boot
    machine = booted(image, asked.memory)
    place = chosen(machine, image, asked.place, asked.hit, lambda: Evaluation(
        Caller(machine, asked.limit), prototypes).run(program))
    if place.tail and asked.clause:
        raise KinstError(f"-n: {asked.place} fires where the function that {place.function.name}:"
                         f"{place.offset} goes to returns, without a breakpoint: a clause is "
                         "explained only at one; give no clause")
    base = machine.snapshot() if asked.what_if else None
    recorder = FiringRecorder(machine, place)
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
        other = FiringRecorder(machine, place, asked.what_if)
        with PROGRESS.working(f"calling {asked.call}, wrongly"):
            again = Evaluation(caller, prototypes)
            wrong = other.record(lambda: again.run(program))
        told += what_if(firing, wrong, words)
    return Explained(image, asked, firing, wrong, told, words, recorder.table)


@dataclass(frozen=True)
class ExplainedWay:
    """A way through the kernel that no probe is on.

    :param what: that is explained.
    """

    image: Image
    what: str
    command: str
    way: Way
    steps: list[Step]
    words: Words

    @property
    def title(self) -> str:
        return f"{self.what} in {catalog.described(self.image)}"

    @property
    def about(self) -> str:
        return (f"{self.image.path.name} (build id {self.image.build_id or 'none'}), "
                f"$ {self.command}; every number is of one run.")


def explain_way(image: Image, name: str, command: str, hit: int, limit: int,
                memory: int) -> ExplainedWay:
    """What a command does, in our userland.

    :param name: of a system call, open or sys_open; ``PAGE_FAULT``; ``CONTEXT_SWITCH``.
    :raises KinstError: when there is no such thing, or the command does not come to it.
    """
    machine = booted(with_userland(image), memory)
    running, words = RunningThread(machine), words_of(image)
    with PROGRESS.working(f"running {command}"):
        if name == CONTEXT_SWITCH:
            switch = SwitchRecorder(machine, command, hit, limit, running).record()
            told = switch_steps(switch, words)
            return ExplainedWay(image, f"A context switch, {switch.before.named} to "
                                f"{switch.after.named},", command,
                                switch_way(switch, told, words), told, words)
        if name == PAGE_FAULT:
            fault = FaultRecorder(machine, command, hit, limit, running)
            fault.record()
            told = fault_steps(fault, words)
            return ExplainedWay(image, f"A page fault of {fault.seen.process}", command,
                                entry_way(fault.seen, told, words), told, words)
        call = CallRecorder(machine, name, command, hit, limit, running)
        seen = call.record()
    told = call_steps(seen, call.number, call.calls, words)
    return ExplainedWay(image, f"{seen.function.name}, called by {seen.process},", command,
                        entry_way(seen, told, words), told, words)


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

    def variable(address: int) -> str:
        found = image.symbols.object_at(address)
        if found is None:
            return ""
        offset = address - found.address
        return f"{found.name}+{offset:#x}" if offset else found.name

    arch = arch_of(image)
    return Words(arch, guest_of(image, arch.name), where, source, text, variable)


def shortened(location: str) -> str:
    """``file:line``, without what stands before a kernel's own directories."""
    return location.rpartition("/sys/")[2] or location


def source_trees(image: Image, trees: Sequence[Path]) -> SourceText:
    """Where the text of a kernel's source is: the teaching kernels' is known."""
    own = [TEACHING_SOURCE, RACES_SOURCE] if catalog.is_teaching(image) else []
    return SourceText([*trees, *own])
