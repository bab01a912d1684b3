"""Probes of the kernel that a D program traces, created on demand, and DTrace's own probes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.attributes import attributes_text
from dtrace.descriptions.description import Description, create, modules_of
from dtrace.descriptions.providers import PROVIDERS
from dtrace.run.instruction_probes import InstructionProbes
from dtrace.run.timers import GLOB, OwnProbes
from dwarf.index import DebugIndex, Function
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.guest.static_probe import StaticProbe
from emu.host.errors import KinstError
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedObject, TracedProgram
from kinst.providers import copy_ends, fbt, kinst_provider
from kinst.providers.patterns import matches
from kinst.providers.pid import Pid
from kinst.providers.usdt import Usdt

OF_CODE = (kinst_provider.PROVIDER, fbt.PROVIDER)  # providers that need only the kernel's functions
FIRST_PROBE = 100  # ID of a kernel's first probe; DTrace's own probes have lower IDs


@dataclass
class KernelProbes:
    """DTrace's own probes, and the probes of a kernel; kernel probes are created on demand.

    :param unsafe: whether to probe excluded functions, too.
    :param index: returns the debug data, for inline functions.
    :param types: returns the kernel's types, for system calls.
    :param program: returns the program that a process runs; ``programs``: see ``Wanted`` of
        kinst/providers/provider.py.
    """

    breakpoints: ProbeTable
    unsafe: bool
    index: Callable[[], DebugIndex] | None
    types: Callable[[], Types] | None = None
    program: Callable[[int], TracedProgram] | None = None
    programs: Callable[[int | None], Sequence[TracedProgram]] | None = None
    own: OwnProbes = field(default_factory=OwnProbes)
    # Messages about instructions that could not be probed
    reports: list[str] = field(default_factory=list)
    rewritten: dict[tuple[str, str, str, str], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._base = FIRST_PROBE
        self._asked: dict[tuple[str, str, str, str], Sequence[ListedProbe]] = {}
        # provider, module and address of a function -> the numbers of the places where it returns
        self._returns: dict[tuple[str, str, int], list[int]] = {}
        # number of a probe -> the inline copies that are entered there
        self._copies: dict[int, list[Function]] = {}

    def match(self, parts: tuple[str, str, str, str]) -> Sequence[ListedProbe]:
        """Return the probes that match a description.

        :raises KinstError: if a place cannot be probed, with the reason.
        """
        if parts not in self._asked:
            own = self.own.match(parts)
            others = self._others(parts, bool(own))
            self._asked[parts] = [*own, *others] if own else others
        return self._asked[parts]

    def _others(self, parts: tuple[str, str, str, str], own: bool) -> Sequence[ListedProbe]:
        """Return the probes of the kernel and of programs that match a description.

        Without a provider, probes that programs declare are looked for only if there are no others.
        """
        provider, module, function, name = parts
        found: Sequence[ListedProbe] = ()
        error = None
        try:
            found = self._kernel(parts, own)
        except ProbeError as failure:
            if provider or own or not name:
                raise
            error = failure
        if found or own or provider or not name or self.programs is None:
            return found
        try:
            return self._kernel(("*", module, function, name), own)
        except ProbeError:
            if error is None:
                return []
            raise error from None

    def _kernel(self, parts: tuple[str, str, str, str], own: bool) -> Sequence[ListedProbe]:
        """Return the kernel's probes that match a description.

        :param own: whether the description also matches DTrace's own probes.
        """
        provider, module, function, name = parts
        if provider in ("dtrace", "profile"):
            return []
        # If the provider is named in full, continue even without a match, to report errors.
        named = (Pid().matches(provider) or Usdt().matches(provider)
                 or any(provider == item.name for item in PROVIDERS))
        if not (named or any(matches(module, item) for item in modules_of(self.breakpoints.image))
                or self._declares(lambda item: matches(module, item.module))):
            return []
        if not (provider or function or GLOB.search(name) or name in ("entry", "return", "")) and (
                own or not self._declares(lambda item: item.name == name)):
            if self.breakpoints.unreadable and not own:
                raise ProbeError("; ".join(self.breakpoints.unreadable))
            return []  # the description is just a name, such as BEGIN
        text = ":".join(parts)
        try:
            made = create(self.breakpoints, Description(text, provider, module, function, name),
                          self.unsafe, self.index, self.types, self.program, self.programs)
        except KinstError as error:
            raise ProbeError(str(error).removeprefix(f"invalid probe specifier {text}: "),
                             error.tag if isinstance(error, ProbeError) else "") from None
        self.reports += made.reports
        self.rewritten[parts] = made.text
        self._copies |= made.copies
        if provider == kinst_provider.PROVIDER and name not in copy_ends.NAMES and not made.copies:
            return InstructionProbes(self.breakpoints, self._base, made.numbers)
        return [self._probe(number, tuple(c.number for c in made.copies.get(number, ())))
                for number in dict.fromkeys(made.numbers)]

    def static(self) -> list[ListedProbe]:
        """Return all static probes that the kernel declares; report those that cannot be read."""
        declared = self.breakpoints.declared
        self.reports += self.breakpoints.unreadable
        return [self._probe(self.breakpoints.list_static(n))
                for n, one in enumerate(declared)
                if one.call is None or self.types is not None]

    def declared(self, probe: ListedProbe) -> StaticProbe | None:
        """Return the declaration of a static probe, or None if the probe is not static."""
        number = self.kernel_number(probe.number)
        return None if number is None else self.breakpoints.static(number)

    def _declares(self, wanted: Callable[[StaticProbe], bool]) -> bool:
        return any(map(wanted, self.breakpoints.declared))

    def _probe(self, number: int, inlined: tuple[int, ...] = ()) -> ListedProbe:
        provider, module, function, name = self.breakpoints.names(number)
        static = self.breakpoints.static(number)
        promised = () if static is None else tuple(map(attributes_text, static.attributes))
        places = self._places(number)
        return ListedProbe(self._base + number, provider, module, function, name, inlined, promised,
                           self._base + places[0] if places else None)

    def _places(self, number: int) -> list[int]:
        """Return the known places where a function returns, if a probe is one of them."""
        provider, module, _function, name = self.breakpoints.names(number)
        symbol = self.breakpoints.function(number) if (
            name == "return" and provider != kinst_provider.PROVIDER) else None
        if symbol is None:
            return []
        places = self._returns.setdefault((provider, module, symbol.address), [])
        if number not in places:
            places.append(number)
        return places

    def entered(self, probe: ListedProbe) -> list[tuple[Function, int]]:
        """Return (copy, address of the probe) for each inline copy that begins at a probe.

        In a program, the addresses are those in the file.
        """
        if not probe.inlined:
            return []
        number = probe.number - self._base
        address = self.breakpoints.probe(number).instruction.address
        inside = self.program_function(probe)
        if inside is None and self.in_program(probe):
            return []
        moved = 0 if inside is None else inside[0].moved
        return [(copy, address - moved) for copy in self._copies[number]]

    def function(self, probe: ListedProbe) -> Symbol | None:
        """Return a probe's function, or None for a static probe or one of DTrace's own probes."""
        number = self.kernel_number(probe.number)
        return None if number is None else self.breakpoints.function(number)

    def in_program(self, probe: ListedProbe) -> bool:
        """Return whether a probe is in the code of a program."""
        number = self.kernel_number(probe.number)
        return number is not None and self.breakpoints.program_of(number) is not None

    def program_function(self, probe: ListedProbe) -> tuple[TracedObject, Symbol] | None:
        """Return the object with a probe of a program, and the function before it was moved.

        Return None for any other probe.
        """
        number, function = self.kernel_number(probe.number), self.function(probe)
        program = None if number is None or function is None else (
            self.breakpoints.program_of(number))
        if program is None or function is None:
            return None
        for one in program.objects:
            at = function.address - one.moved
            found = one.file.symbols.function_at(at) if one.file.path.name in (
                function.module, function.module + one.file.path.suffix) else None
            if found is not None and found.address == at:
                return one, replace(function, address=at)
        return None

    def offset(self, probe: ListedProbe) -> int:
        """Return the offset in bytes of a probe from the start of its function."""
        return self.breakpoints.offset(probe.number - self._base)

    @property
    def base(self) -> int:
        """ID of the first probe of the kernel."""
        return self._base

    def kernel_number(self, number: int) -> int | None:
        """Return the number of a kernel probe in the probe table, or None for DTrace's own probes.

        :param number: ID of the probe.
        """
        return number - self._base if number >= self._base else None

    def provides(self, provider: str) -> bool:
        """Return whether a provider has probes, without creating probes in the kernel's code."""
        if Pid().matches(provider):
            try:
                return bool(self.match((provider, "", "", "")))
            except KinstError:
                return False
        return (self.own.provides(provider) or any(matches(provider, name) for name in OF_CODE)
                or self._declares(lambda one: matches(provider, one.provider)))

    def numbered(self, number: int) -> Sequence[ListedProbe]:
        """Return the probe with an ID, as all of its places, or nothing if there is none."""
        if number < self._base:
            return self.own.numbered(number)
        known = number - self._base
        if known >= len(self.breakpoints.probes):
            return []
        places = self._places(known) or [known]
        return [self._probe(place) for place in places] if places[0] == known else []
