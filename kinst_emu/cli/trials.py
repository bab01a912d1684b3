"""Trials of modules by the workers of a sweep, each of which boots the kernel for itself, once."""

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
    """A kernel and modules, as every worker finds them, and the random states.

    :param identity: of the kernel with its modules; a worker that finds another refuses.
    """

    kernel: str
    modules: tuple[str, ...]
    memory: int
    seed: int
    states: int
    provider: str = "kinst"
    identity: str = ""


NO_LINE = "?"
MERGED = 8  # functions that are named where the compiler gives no line
PROVIDERS: dict[str, type[ProviderModule]] = {"kinst": KinstModule, "fbt": FbtModule}


def _prepared(setting: Setting) -> Trial:
    """A machine with the kernel and its modules, booted and prepared."""
    image = catalog.find(setting.kernel, setting.modules)
    check_identity(image, setting.identity)
    return Trial(booted(image, setting.memory), kernel_types(image), setting.seed,
                 PROVIDERS[setting.provider])


@dataclass(frozen=True)
class ExecutionTask(FindingTask[Trial]):
    """Encodings, executed under the module's probes."""

    setting: Setting
    copied = True

    @property
    def prepared_for(self) -> Setting:
        return self.setting

    def prepare(self) -> Trial:
        return _prepared(self.setting)

    def results(self, prepared: Trial, items: Sequence[bytes]) -> list[Finding]:
        return [finding(one.word, one.mismatch, one.code, one.note, verdict=one.verdict)
                for one in tried(prepared, items, self.setting.states)]


@dataclass(frozen=True)
class VerdictsTask(Task[tuple[str, int], Verdicts, Trial]):
    """The verdicts on functions, each by its name and address."""

    setting: Setting
    copied = True

    @property
    def prepared_for(self) -> Setting:
        return self.setting

    def prepare(self) -> Trial:
        return _prepared(self.setting)

    def results(self, prepared: Trial, items: Sequence[tuple[str, int]]) -> list[Verdicts]:
        symbols = prepared.machine.image.symbols
        functions = [symbol for name, address in items for symbol in symbols.named(name)
                     if symbol.address == address and symbol.size]
        look = fbt_verdicts if self.setting.provider == "fbt" else verdicts
        return list(look(prepared, functions[: len(items)]))


def sites_of(setting: Setting, functions: list[Symbol]) -> dict[bytes, str]:
    """The instructions at which FBT's probes stand, each with its first place."""
    trial, found = prepared(ExecutionTask(setting)), dict[bytes, str]()
    for function in functions:
        try:
            entry, returns = sites(trial, function)
        except MemoryAccessError:
            continue
        for one in [*([entry] if entry is not None else ()), *returns]:
            found.setdefault(one.code, f"{function.name}+{one.offset}")
    return found


def located(setting: Setting, one: Finding, plain: bytes) -> str:
    """The lines of the module's source that decided, one a row."""
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
            return ""  # a linker's veneer
        name = frames[0].name
        if line == NO_LINE:
            # What compilers merge from several places loses its line: it may be any of these.
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
    """Those of the names, or all of the kernel; one for each address."""
    if names:
        found = [symbol for name in names for symbol in sized_functions(image, name)]
    else:
        found = [f for f in image.symbols.functions() if not image.module_at(f.address)]
    by_address: dict[int, Symbol] = {}
    for symbol in found:
        known = by_address.get(symbol.address)
        if known is None or known.size < symbol.size:
            by_address[symbol.address] = symbol
    return list(by_address.values())
