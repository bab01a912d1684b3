"""Trials of FreeBSD's kinst and fbt modules by sweep workers, each of which boots a kernel."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dtrace.debug.symbols import sized_functions
from dwarf.debug_file import DebugDataError
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.host.errors import MemoryAccessError
from emu.machine.call import CallError
from images import catalog
from images.boots import booted
from kinst.verify.laboratory.finding import Finding, FindingTask, finding
from kinst.verify.sweep.task import Task, prepared
from kinst.verify.sweep.workers import check_identity
from kinst.verify.trial.deciding import deciding
from kinst.verify.trial.execution import tried
from kinst.verify.trial.fbt_module import FbtModule
from kinst.verify.trial.fbt_verdicts import fbt_verdicts, sites
from kinst.verify.trial.provider_module import KinstModule, ProviderModule
from kinst.verify.trial.trial import Trial
from kinst.verify.trial.verdicts import Verdicts, verdicts


@dataclass(frozen=True)
class Setting:
    """The kernel, modules and random states that every worker uses.

    :param kernel: kernel file, or its name in the catalog.
    :param memory: guest RAM in bytes.
    :param seed: seed of the random states.
    :param states: number of random states per instruction.
    :param provider: provider to try: kinst or fbt.
    :param identity: identity of the kernel with its modules; a worker with another one refuses.
    """

    kernel: str
    modules: tuple[str, ...]
    memory: int
    seed: int
    states: int
    provider: str = "kinst"
    identity: str = ""


NO_LINE = "?"
MERGED = 8  # maximum number of inlined functions listed for code without a source line
PROVIDERS: dict[str, type[ProviderModule]] = {"kinst": KinstModule, "fbt": FbtModule}


def _prepared(setting: Setting) -> Trial:
    """Return a booted and prepared machine with the kernel and its modules."""
    image = catalog.find(setting.kernel, setting.modules)
    check_identity(image, setting.identity)
    return Trial(booted(image, setting.memory), kernel_types(image), setting.seed,
                 PROVIDERS[setting.provider])


@dataclass(frozen=True)
class ExecutionTask(FindingTask[Trial]):
    """A task that executes encodings under the module's probes."""

    setting: Setting
    copied = True

    @property
    def prepared_for(self) -> Setting:
        """The setting for which a worker is prepared."""
        return self.setting

    def prepare(self) -> Trial:
        """Boot and prepare a machine."""
        return _prepared(self.setting)

    def results(self, prepared: Trial, items: Sequence[bytes]) -> list[Finding]:
        """Execute encodings and return a finding for each."""
        return [finding(one.word, one.mismatch, one.code, one.note, verdict=one.verdict)
                for one in tried(prepared, items, self.setting.states)]


@dataclass(frozen=True)
class VerdictsTask(Task[tuple[str, int], Verdicts, Trial]):
    """A task that compares verdicts on functions; each function is given by name and address."""

    setting: Setting
    copied = True

    @property
    def prepared_for(self) -> Setting:
        """The setting for which a worker is prepared."""
        return self.setting

    def prepare(self) -> Trial:
        """Boot and prepare a machine."""
        return _prepared(self.setting)

    def results(self, prepared: Trial, items: Sequence[tuple[str, int]]) -> list[Verdicts]:
        """Compare kinst-emu's verdicts on functions with the module's verdicts."""
        symbols = prepared.machine.image.symbols
        functions = [symbol for name, address in items for symbol in symbols.named(name)
                     if symbol.address == address and symbol.size]
        look = fbt_verdicts if self.setting.provider == "fbt" else verdicts
        return list(look(prepared, functions[: len(items)]))


def sites_of(setting: Setting, functions: list[Symbol]) -> dict[bytes, str]:
    """Return the distinct instructions at FBT sites, each with the first FUNCTION+OFFSET found."""
    trial, places = prepared(ExecutionTask(setting)), dict[bytes, str]()
    for function in functions:
        try:
            entry, returns = sites(trial, function)
        except MemoryAccessError:
            continue
        for instruction in [*([entry] if entry is not None else ()), *returns]:
            places.setdefault(instruction.code, f"{function.name}+{instruction.offset}")
    return places


def located(setting: Setting, one: Finding, plain: bytes) -> str:
    """Return the lines of the module's source that decided a finding, separated by newlines.

    :param one: the finding.
    :param plain: encoding of a plain instruction, for comparison.
    """
    trial = prepared(ExecutionTask(setting))
    image = trial.machine.image
    sources = Sources(image)
    try:
        index = debug_index(image)
    except DebugDataError:
        return ""

    def describe(pc: int) -> str:
        frames, line = index.stack(pc), sources.line(pc)
        if not frames:
            return ""  # code that the linker added, such as a veneer
        name = frames[0].name
        if line == NO_LINE:
            # Code merged from several places has no line: list the functions inlined there.
            inside = [one.name for low, high in frames[-1].pieces
                      for one in index.inside(low, high)]
            merged = ", ".join(list(dict.fromkeys(n for n in inside if n != name))[:MERGED])
            return f"{name} (no line of its own{f'; inlined here: {merged}' * bool(merged)})"
        return f"{name} ({line.rpartition('/sys/')[2] or line})"

    try:
        return deciding(trial, one.code, plain, one.state or 0, describe)
    except (CallError, DebugDataError, MemoryAccessError):
        return ""


def functions_of(image: Image, names: list[str]) -> list[Symbol]:
    """Return the functions with the given names, or all kernel functions in address order."""
    if names:
        candidates = [symbol for name in names for symbol in sized_functions(image, name)]
    else:
        candidates = [f for f in image.symbols.functions() if not image.module_at(f.address)]
    by_address: dict[int, Symbol] = {}
    for symbol in candidates:
        known = by_address.get(symbol.address)
        if known is None or known.size < symbol.size:
            by_address[symbol.address] = symbol
    return list(by_address.values())
