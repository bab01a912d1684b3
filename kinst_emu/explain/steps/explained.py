"""Creation of explanations: boot, record a firing or kernel entry, and describe it in steps."""

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
LIMIT = 100_000  # instruction budget of a call with a deliberate mistake
# maximum distance in bytes from an assembly label to an address that is shown as label+offset
LABELLED = 1 << 12
MEMORY = 512 << 20  # default guest RAM in bytes
TEACHING_SOURCE = Path(catalog.__file__).parent / "teaching"
RACES_SOURCE = TEACHING_SOURCE.with_name("races")


@dataclass(frozen=True)
class Asked:
    """Parameters of an explanation.

    :param place: ``FUNCTION:OFFSET``, or an entry or return probe, including inline functions.
    :param call: the call that makes the probe fire.
    :param hit: number of the firing, from 1.
    :param clause: D clause for the probe; empty if there is none.
    :param what_if: deliberate mistake to show as well; empty if there is none.
    :param limit: number of instructions after which the call is aborted.
    :param memory: guest RAM, in bytes.
    :param sources: directory trees with the kernel's source.
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
    """An explained firing of a probe.

    :param wrong: the same firing with the deliberate mistake, if one was requested.
    :param table: the instructions of the function.
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
        """Title of the explanation."""
        firing = self.firing
        probe = f" ({firing.asked.probe})" if firing.asked.probe else ""
        return (f"A breakpoint at {firing.function.name}:{firing.instruction.offset}{probe} in "
                f"{catalog.described(self.image)}")

    @property
    def about(self) -> str:
        """Line below the title: kernel, build ID and call."""
        return (f"{self.image.path.name} (build ID {self.image.build_id or 'none'}), "
                f"{self.asked.call}; all numbers are from a single run.")


def explain(image: Image, asked: Asked) -> Explained:
    """Explain one firing of a probe.

    :raises KinstError: if the instruction, the firing or the call does not exist.
    """
    program, trees = parse(asked.call), source_trees(image, asked.sources)
    check(image, program, prototypes := Prototypes(image))
    if end_of(asked.place) is None:
        code_places(image, asked.place)  # report an invalid place before booting
    machine = booted(image, asked.memory)
    place = chosen(machine, image, asked.place, asked.hit, lambda: Evaluation(
        Caller(machine, asked.limit), prototypes).run(program))
    if place.tail and asked.clause:
        raise KinstError(f"-n: the clause cannot be explained, because {asked.place} fires without "
                         f"a breakpoint when the callee of {place.function.name}:{place.offset} "
                         "returns; leave out -n")
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
    explanation = steps(firing, recorder.table, words)
    if base is not None:
        machine.restore(base)
        caller.placed_again(placed)
        caller.limit = min(asked.limit, LIMIT)
        other = FiringRecorder(machine, place, asked.what_if)
        with PROGRESS.working(f"calling {asked.call} with the mistake"):
            again = Evaluation(caller, prototypes)
            wrong = other.record(lambda: again.run(program))
        explanation += what_if(firing, wrong, words)
    return Explained(image, asked, firing, wrong, explanation, words, recorder.table)


@dataclass(frozen=True)
class ExplainedWay:
    """An explained system call, page fault or context switch.

    :param what: subject of the explanation, for the title.
    """

    image: Image
    what: str
    command: str
    way: Way
    steps: list[Step]
    words: Words

    @property
    def title(self) -> str:
        """Title of the explanation."""
        return f"{self.what} in {catalog.described(self.image)}"

    @property
    def about(self) -> str:
        """Line below the title: kernel, build ID and command."""
        return (f"{self.image.path.name} (build ID {self.image.build_id or 'none'}), "
                f"$ {self.command}; all numbers are from a single run.")


def explain_way(image: Image, name: str, command: str, hit: int, limit: int,
                memory: int) -> ExplainedWay:
    """Explain what a shell command does in the kernel.

    :param name: a system call, such as open or sys_open; ``PAGE_FAULT``; or ``CONTEXT_SWITCH``.
    :raises KinstError: if the name is unknown, or the command does not reach the event.
    """
    machine = booted(with_userland(image), memory)
    running, words = RunningThread(machine), words_of(image)
    with PROGRESS.working(f"running {command}"):
        if name == CONTEXT_SWITCH:
            switch = SwitchRecorder(machine, command, hit, limit, running).record()
            explanation = switch_steps(switch, words)
            return ExplainedWay(image, f"A context switch from {switch.before.named} to "
                                f"{switch.after.named}", command,
                                switch_way(switch, explanation, words), explanation, words)
        if name == PAGE_FAULT:
            fault = FaultRecorder(machine, command, hit, limit, running)
            fault.record()
            explanation = fault_steps(fault, words)
            return ExplainedWay(image, f"A page fault of {fault.seen.process}", command,
                                entry_way(fault.seen, explanation, words), explanation, words)
        call = CallRecorder(machine, name, command, hit, limit, running)
        seen = call.record()
    explanation = call_steps(seen, call.number, call.calls, words)
    return ExplainedWay(image, f"{seen.function.name}, called by {seen.process},", command,
                        entry_way(seen, explanation, words), explanation, words)


def words_of(image: Image, trees: SourceText | None = None) -> Words:
    """Return the ``Words`` object with which explanations name the addresses of a kernel.

    :param trees: text of the kernel's source; None if it is not available.
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
        if label is not None and label.name.startswith("."):  # code that the linker has made
            module = image.module_at(address)
            return (f"{module.name}+{address - module.address:#x}" if module is not None
                    else image.symbols.where(address))
        return (f"{label.name}+{address - label.address:#x}" if label is not None
                and address - label.address < LABELLED else image.symbols.where(address))

    def variable(address: int) -> str:
        symbol = image.symbols.object_at(address)
        if symbol is None:
            return ""
        offset = address - symbol.address
        return f"{symbol.name}+{offset:#x}" if offset else symbol.name

    arch = arch_of(image)
    return Words(arch, guest_of(image, arch.name), where, source, text, variable)


def shortened(location: str) -> str:
    """Shorten ``file:line`` by removing the path up to and including the ``sys`` directory."""
    return location.rpartition("/sys/")[2] or location


def source_trees(image: Image, trees: Sequence[Path]) -> SourceText:
    """Return a reader of source trees, including the source of a teaching kernel."""
    own = [TEACHING_SOURCE, RACES_SOURCE] if catalog.is_teaching(image) else []
    return SourceText([*trees, *own])
