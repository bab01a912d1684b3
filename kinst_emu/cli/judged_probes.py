"""``kinst xval --dtrace --probes``: lists of probes of the guest's dtrace(1) and of kdtrace."""

import argparse
import functools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dtrace.calls.prototypes import Prototypes
from dtrace.d.language.spelled_types import spelled_type
from dtrace.d.language.types import Universe
from dtrace.debug.debug_index import index_of
from dtrace.judge.probe_lists import (
    KERNEL,
    Compared,
    Details,
    Probe,
    compare,
    parse,
    parse_plain,
)
from dwarf.debug_file import debug_file
from dwarf.index import DebugIndex
from dwarf.types import Integer, Pointer, Type, Types, strip
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.linked_image import SUFFIX
from emu.elf.symbols import STT_GNU_IFUNC
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from emu.host.printable import counted
from images import catalog
from images.guest_tracer import GuestTracer
from images.systems import with_disks
from kinst.code.listing import ProbedInstruction, image_code, instructions
from kinst.relocation.trap import trap_of
from kinst.relocation.verdict import ConditionalJump, Jump, Refuse
from kinst.verify.sweep.task import Task
from kinst.verify.sweep.workers import check_identity
from kinst_emu.cli.judged import kdtrace
from kinst_emu.cli.sweeps import Sweep, progress_bar
from kinst_emu.terminal.terminal import parse_count

DEFAULT_FUNCTIONS, MAX_FUNCTIONS = 200, 100_000
TOGETHER = 100  # number of functions whose probes are listed at once
MOST_MODULE = 1 << 26  # maximum size of a module in bytes
MOST_SHOWN = 20  # maximum number of unexplained differences shown for a provider
LONGEST = 15  # maximum size of an instruction in bytes
EVERYTHING = ":::\n{\n}\n"
FAILED = re.compile(r"failed to match (\S+): (.*)")


def refuse_for_probes(arguments: argparse.Namespace) -> None:
    """Refuse options that have no meaning with ``--probes``.

    :raises KinstError: there is such an option.
    """
    if arguments.dtrace is None:
        raise KinstError("--probes: needs --dtrace: the lists are compared with those of dtrace(1)")
    if arguments.dtrace:
        raise KinstError(f"{arguments.dtrace[0]}: --probes compares lists of probes, without "
                         "scripts")
    for name in ("store", "call", "suite"):
        if getattr(arguments, name):
            raise KinstError(f"{'-c' if name == 'call' else f'--{name}'}: cannot be used with "
                             "--probes")


class KernelFacts:
    """What the reasons for differences ask about a kernel (``dtrace.judge.probe_lists.Facts``)."""

    def __init__(self, image: Image, memory: int) -> None:
        self._image, self._memory = image, memory
        self._why: dict[Probe, str] = {}
        self._arch = arch_of(image)
        self._trap = trap_of(guest_of(image, self._arch.name), self._arch.name)

    @functools.cached_property
    def _modules(self) -> dict[str, bytes]:
        """The modules next to the kernel: name -> content."""
        return {path.stem: path.read_bytes() for path in catalog.modules_beside(self._image.path)
                if path.suffix == SUFFIX and path.stat().st_size <= MOST_MODULE}

    def is_module(self, name: str) -> bool:
        """See ``Facts``."""
        return name in self._modules

    def in_a_module(self, word: str) -> bool:
        """See ``Facts``."""
        text = word.encode() + b"\0"
        return any(text in content for content in self._modules.values())

    def is_alias(self, function: str) -> bool:
        """See ``Facts``."""
        named = self._image.symbols.named(function)
        addresses = [symbol.address for symbol in named]
        return len(set(addresses)) < len(addresses) or any(
            symbol.kind == STT_GNU_IFUNC for symbol in named) or any(
            symbol.address in addresses and symbol.name != function
            for symbol in self._image.symbols.functions())

    def several(self, function: str) -> bool:
        """See ``Facts``."""
        return len(self._image.symbols.named(function)) > 1

    def begins_refused(self, function: str) -> bool:
        """See ``Facts``."""
        return any(isinstance(code[0].verdict, Refuse) for code in self._codes(function))

    def begins_with_loop(self, function: str) -> bool:
        """See ``Facts``."""
        return any(isinstance(i.verdict, Jump | ConditionalJump) and i.verdict.target
                   == code[0].address for code in self._codes(function) for i in code)

    def ask_why(self, probes: Sequence[Probe]) -> None:
        """Learn from kdtrace why it does not list probes."""
        asked = [probe for probe in probes if len(probe) == 4 and probe[1] == KERNEL]
        program = "".join(f"{':'.join(probe)}\n{{\n}}\n" for probe in asked)
        if not asked:
            return
        outcome = kdtrace(self._image.path, self._memory, program, ["-l"])
        said = dict(FAILED.findall(outcome.errors))
        lists = bool(parse_plain(outcome.output)) or len(said) == len(asked)
        for probe in asked:
            self._why[probe] = said.get(":".join(probe), "" if lists else "unknown")

    def why_not(self, probe: Probe) -> str:
        """See ``Facts``; ``ask_why`` must have asked about the probe."""
        return self._why.get(probe, "unknown")

    @functools.cached_property
    def _index(self) -> DebugIndex:
        return index_of(self._image.file, self._image.kernel_identity)

    @functools.cached_property
    def _types(self) -> Types:
        types = Prototypes(self._image).types()
        if types is None:
            raise KinstError(f"{self._image.path}: has no debug data, which --probes needs")
        return types

    def is_assembly(self, function: str) -> bool:
        """See ``Facts``."""
        symbols = self._image.symbols.named(function)
        return bool(symbols) and not any(self._index.stack(one.address) for one in symbols)

    def only_jumps_out(self, function: str) -> bool:
        """See ``Facts``."""
        return any(not self._returns(code) for code in self._codes(function))

    def returns_before_frame(self, function: str) -> bool:
        """See ``Facts``."""
        for code in self._codes(function):
            first = next((n for n, i in enumerate(code) if self._arch.disassemble(
                i.code, i.address).startswith(self._arch.saves_frame)), 0)
            if first and self._returns(code) and not self._returns(code[first:]):
                return True
        return False

    def _returns(self, code: Sequence[ProbedInstruction]) -> bool:
        return any(self._trap.instructions.is_return(i.code) for i in code)

    def _codes(self, function: str) -> list[list[ProbedInstruction]]:
        """Return the instructions of each function of a name."""
        return [list(instructions(self._trap, image_code(self._image, symbol), symbol))
                for symbol in self._image.symbols.named(function) if symbol.size]

    def contains(self, function: str, mnemonic: str) -> bool:
        """See ``Facts``."""
        return any(self._arch.disassemble(i.code, i.address).startswith(mnemonic)
                   for code in self._codes(function) for i in code)

    def mnemonic(self, function: str, offset: int) -> str:
        """See ``Facts``."""
        symbol = self._image.symbols.find(function)
        if symbol is None or not 0 <= offset < symbol.size:
            return ""
        code = self._image.virtual_to_file(
            symbol.address + offset, min(LONGEST, symbol.size - offset))
        return self._arch.disassemble(code, symbol.address + offset).partition(" ")[0]

    def same_type(self, one: str, other: str) -> bool:
        """See ``Facts``."""
        universe = Universe(self._types)
        first, second = spelled_type(one, universe), spelled_type(other, universe)
        return first is not None and second is not None and _plain(first) == _plain(second)

    def is_known(self, call: str) -> bool:
        """See ``Facts``."""
        symbol = self._image.symbols.find(f"sys_{call}")
        return symbol is not None and self._types.function(
            symbol.name, symbol.address) is not None


def _plain(kind: Type) -> tuple[int, object]:
    """Return a type without qualifiers and names, and how many pointers lead to it."""
    pointers, kind = 0, strip(kind)
    while isinstance(kind, Pointer):
        pointers, kind = pointers + 1, strip(kind.target)
    return pointers, (kind.size, kind.signed) if isinstance(kind, Integer) else kind


@dataclass(frozen=True)
class Lists:
    """The two tracers, ready to list probes."""

    image: Image
    memory: int
    tracer: GuestTracer
    facts: KernelFacts

    def both(self, program: str, options: str
             ) -> tuple[dict[Probe, list[Details]], dict[Probe, list[Details]]]:
        """Return the probes of a program's descriptions as dtrace(1) and kdtrace list them.

        :raises KinstError: a list cannot be made.
        """
        try:
            theirs = parse(self.tracer.listed(program, options))
        except ValueError as error:
            raise KinstError(f"dtrace(1) prints an unexpected list of probes: {error}") from None
        outcome = kdtrace(self.image.path, self.memory, program, [options])
        found = parse_plain(outcome.output)
        if not found:
            raise KinstError(f"kdtrace lists no probes: {outcome.errors.strip()[:200]}")
        return theirs, found


Item = tuple[str, str]  # options and program


@dataclass(frozen=True)
class ProbesTask(Task[Item, dict[str, Compared], Lists]):
    """Task that compares the lists of probes of programs' descriptions.

    :param identity: identity of the kernel; a worker with another one refuses.
    :param memory: guest RAM in bytes.
    """

    kernel: str
    identity: str
    memory: int

    def prepare(self) -> Lists:
        """Boot the base system.

        :raises KinstError: this is not possible, or the kernel is not the expected one.
        """
        image = catalog.find(self.kernel)
        check_identity(image, self.identity)
        image = with_disks(image, [], base=True)
        return Lists(image, self.memory, GuestTracer(image, self.memory),
                     KernelFacts(image, self.memory))

    def results(self, prepared: Lists, items: Sequence[Item]) -> list[dict[str, Compared]]:
        """Compare the lists of programs."""
        return [_compared(prepared, options, program) for options, program in items]


def _compared(lists: Lists, options: str, program: str) -> dict[str, Compared]:
    theirs, found = lists.both(program, options)
    lists.facts.ask_why([probe for probe, places in theirs.items()
                         if len(places) > len(found.get(probe, ()))])
    return compare(theirs, found, lists.facts)


def compare_probes(image: Image, memory: int, seed: int, arguments: argparse.Namespace) -> int:
    """Compare lists of probes, print the differences, and return the exit status.

    :param image: the kernel with the base system.
    :param memory: guest RAM in bytes.
    :raises KinstError: a list cannot be made.
    """
    count = DEFAULT_FUNCTIONS if arguments.random is None else parse_count(
        arguments.random, "--random")
    if not 0 < count <= MAX_FUNCTIONS:
        raise KinstError(f"--random {count}: must be from 1 to {MAX_FUNCTIONS} functions")
    if debug_file(image.file) is None:
        raise KinstError(f"{image.path}: has no debug data (DWARF), which --probes needs")
    functions = _functions(image, count, seed)
    items = []
    for at in range(0, len(functions), TOGETHER):
        some = functions[at : at + TOGETHER]
        items += [("-l", "".join(f"kinst:kernel:{name}:\n{{\n}}\n" for name in some)),
                  ("-lv", "".join(f"fbt:kernel:{name}:\n{{\n}}\n" for name in some))]
    task = ProbesTask(str(image.path.absolute()), image.kernel_identity, memory)
    names, details = dict[str, Compared](), dict[str, Compared]()
    with Sweep(arguments) as jobs, progress_bar(len(items) + 2, "lists") as advance:

        def run(some: list[Item]) -> None:
            for done in jobs.workers.done(task, [[item] for item in some]):
                for (options, _program), result in zip(done.items, done.results, strict=True):
                    into = names if options == "-l" else details
                    for provider, compared in result.items():
                        into.setdefault(provider, Compared()).join(compared)
                advance(len(done.items))

        run([("-l", EVERYTHING)])
        others = sorted(set(names) - {"fbt", "kinst"})  # of these, the random functions' probes
        run([("-lv", ",".join(f"{provider}:::" for provider in others) + "{}\n"), *items])
    wrong = sum(len(one.unknown) for table in (names, details) for one in table.values())
    if arguments.json:
        print(json.dumps({"seed": seed, "functions": len(functions), "names": _json(names),
                          "details": _json(details), "unexplained": wrong}))
    else:
        _print("names of probes", names)
        _print("arguments and stability (-lv)", details)
        print(f"kinst and the arguments of fbt: {counted(len(functions), 'function')} "
              f"(seed {seed})")
        print(f"{counted(wrong, 'difference')} without a known reason")
    return 1 if wrong else 0


def _functions(image: Image, count: int, seed: int) -> list[str]:
    """Return random functions of the kernel whose names are unique."""
    names: dict[str, int] = {}
    for symbol in image.symbols.functions():
        names[symbol.name] = names.get(symbol.name, 0) + 1
    unique = sorted(name for name, found in names.items()
                    if found == 1 and name.isidentifier() and name.isascii())
    return random.Random(seed).sample(unique, min(count, len(unique)))


def _json(table: dict[str, Compared]) -> dict[str, object]:
    return {provider: {
        "dtrace": one.theirs, "kdtrace": one.ours, "equal": one.equal, "unexplained": one.unknown,
        "explained": [{"what": what, "why": why, "probes": number}
                      for (what, why), number in sorted(one.explained.items())]}
        for provider, one in sorted(table.items())}


def _print(title: str, table: dict[str, Compared]) -> None:
    print(f"{title:32} {'dtrace(1)':>9} {'kdtrace':>9} {'equal':>9}")
    for provider, one in sorted(table.items()):
        print(f"  {provider:30} {one.theirs:9} {one.ours:9} {one.equal:9}")
        for (what, why), number in sorted(one.explained.items()):
            print(f"{number:8} {what}: {why}")
        for line in one.unknown[:MOST_SHOWN]:
            print(f"         NOT EXPLAINED: {line}")
        if len(one.unknown) > MOST_SHOWN:
            print(f"         ... {len(one.unknown) - MOST_SHOWN} more")
