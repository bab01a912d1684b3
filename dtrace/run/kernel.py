"""A program on a kernel: its probes, its types and symbols."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.spelled_types import spelled_type
from dtrace.d.language.surroundings import Located
from dtrace.d.language.types import LONG, Universe
from dtrace.descriptions.description import Description, create, modules_of
from dtrace.descriptions.providers import PROVIDERS
from dtrace.run.timers import GLOB, OwnProbes
from dtrace.stacks.user_programs import ADDRESS, UserPrograms
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, Function
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Place
from dwarf.module_variables import modules, variable
from dwarf.types import Pointer, Procedure, Structure, Type, Types, Void, declare, size_of, strip
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.symbols import KERNEL, Symbol
from emu.guest.static_probe import StaticProbe, SystemCall
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from kinst.probes.arguments import Arguments
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.system_calls import arguments
from kinst.probes.traced_program import TracedProgram
from kinst.providers import fbt, kinst_provider
from kinst.providers.patterns import matches
from kinst.providers.pid import Pid

OF_CODE = (kinst_provider.PROVIDER, fbt.PROVIDER)  # any kernel has functions
FIRST_PROBE = 100  # the ID of a kernel's first probe: behind DTrace's own


@dataclass
class KernelProbes:
    """DTrace's own probes, and those of a kernel, which are made when they are asked for.

    :param index: gives the debug data, for inline functions; ``types`` those for system calls;
        ``program`` what a process runs.
    """

    breakpoints: ProbeTable
    unsafe: bool
    index: Callable[[], DebugIndex] | None
    types: Callable[[], Types] | None = None
    program: Callable[[int], TracedProgram] | None = None
    own: OwnProbes = field(default_factory=OwnProbes)
    reports: list[str] = field(default_factory=list)  # what could not be probed
    rewritten: dict[tuple[str, str, str, str], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._base = FIRST_PROBE
        self._asked: dict[tuple[str, str, str, str], list[ListedProbe]] = {}
        self._copies: dict[int, Function] = {}

    def match(self, parts: tuple[str, str, str, str]) -> Sequence[ListedProbe]:
        """Those of a description.

        :raises KinstError: saying why a place cannot be probed.
        """
        if parts not in self._asked:
            own = self.own.match(parts)
            self._asked[parts] = [*own, *self._kernel(parts, bool(own))]
        return self._asked[parts]

    def _kernel(self, parts: tuple[str, str, str, str], own: bool) -> list[ListedProbe]:
        """:param own: whether it is one of DTrace's own, too."""
        provider, module, function, name = parts
        if provider in ("dtrace", "profile"):
            return []
        # Named in full: then it is said what is wrong.
        named = Pid().matches(provider) or any(provider == one.name for one in PROVIDERS)
        if not (named or any(matches(module, one) for one in modules_of(self.breakpoints.image))
                or self._declares(lambda one: matches(module, one.module))):
            return []
        if not (provider or function or GLOB.search(name) or name in ("entry", "return", "")) and (
                own or not self._declares(lambda one: one.name == name)):
            return []  # BEGIN and the like
        text = ":".join(parts)
        try:
            made = create(self.breakpoints, Description(text, provider, module, function, name),
                          self.unsafe, self.index, self.types, self.program)
        except KinstError as error:
            raise ProbeError(str(error).removeprefix(f"invalid probe specifier {text}: "),
                             error.tag if isinstance(error, ProbeError) else "") from None
        self.reports += made.reports
        self.rewritten[parts] = made.text
        self._copies |= {copy.number: copy for found in made.copies.values() for copy in found}
        return [self._probe(number, tuple(c.number for c in made.copies.get(number, ())))
                for number in dict.fromkeys(made.numbers)]

    def static(self) -> list[ListedProbe]:
        """All that the kernel declares."""
        return [self._probe(self.breakpoints.add_static(n, self.types))
                for n, one in enumerate(self.breakpoints.declared)
                if one.call is None or self.types is not None]

    def declared(self, probe: ListedProbe) -> StaticProbe | None:
        """What the kernel says of a static probe; None: it is none."""
        number = self.kernel_number(probe.number)
        return None if number is None else self.breakpoints.static(number)

    def _declares(self, wanted: Callable[[StaticProbe], bool]) -> bool:
        return any(map(wanted, self.breakpoints.declared))

    def _probe(self, number: int, inlined: tuple[int, ...] = ()) -> ListedProbe:
        provider, module, function, name = self.breakpoints.names(number)
        return ListedProbe(self._base + number, provider, module, function, name, inlined)

    def entered(self, probe: ListedProbe) -> list[tuple[Function, int]]:
        """The inline copies that a probe stands for, each with the probe's address."""
        if not probe.inlined:
            return []
        address = self.breakpoints.probe(probe.number - self._base).instruction.address
        return [(self._copies[number], address) for number in probe.inlined]

    def function(self, probe: ListedProbe) -> Symbol | None:
        """The function that a probe lies in; None for one of DTrace's own, and a static one."""
        number = self.kernel_number(probe.number)
        return None if number is None else self.breakpoints.function(number)

    def offset(self, probe: ListedProbe) -> int:
        """Bytes from the begin of that function to the probe."""
        return self.breakpoints.offset(probe.number - self._base)

    def kernel_number(self, number: int) -> int | None:
        """The number of a kernel's probe in its table, by its ID; None for one of DTrace's own."""
        return number - self._base if number >= self._base else None

    def provides(self, provider: str) -> bool:
        """Whether a provider has probes; those of the kernel's code are not made for it."""
        if Pid().matches(provider):
            try:
                return bool(self.match((provider, "", "", "")))
            except KinstError:
                return False
        return (self.own.provides(provider) or any(matches(provider, name) for name in OF_CODE)
                or self._declares(lambda one: matches(provider, one.provider)))

    def numbered(self, number: int) -> ListedProbe | None:
        if number < self._base:
            return self.own.numbered(number)
        known = number - self._base
        return self._probe(known) if known < len(self.breakpoints.probes) else None


MOST_ARGUMENTS = 256  # parameters of a function that are listed
HELD = 10  # arguments that a context has room for
IN_CONTEXT = 5  # arguments that are in the context of a function's entry,
RETURNED = 2  # and of its return: where it has left, and what it gives
MOST_PLACES = 200_000  # probes of one clause whose arguments are looked for
NOTHING = Procedure((), False, Void)


def _spelled(procedure: Procedure) -> str:
    """A prototype's types, and the sizes of what they point to: two files may have different
    structures of one name."""
    sizes = [size_of(strip(kind.target)) for p in procedure.parameters
             if isinstance(kind := strip(p.type), Pointer)
             and isinstance(strip(kind.target), Structure)]
    return f"{declare(procedure, '')} {sizes}"


@dataclass
class KernelSurroundings:
    """A kernel's variables, and the types of a probe's arguments.

    :param types: None where the kernel has none.
    :param place: puts bytes among the program's constants; their address.
    :param say: tells of a variable whose module is not loaded.
    """

    image: Image
    types: Types | None
    probes: KernelProbes
    place: Callable[[bytes], int]
    say: Callable[[str], None]
    probe: ListedProbe | None = None
    _clause: Sequence[ListedProbe] = ()
    _said: set[str] = field(default_factory=set)
    _spelled: dict[int, tuple[Procedure, str]] = field(default_factory=dict)
    _modules: dict[tuple[str, str], tuple[int, Type] | None] = field(default_factory=dict)

    def entered(self, probes: Sequence[ListedProbe]) -> None:
        """Probes of several functions have no arguments of one type."""
        names = {(p.provider, p.function, p.name) for p in probes}
        self.probe = probes[0] if len(names) == 1 else None
        self._clause = probes

    @property
    def registers(self) -> Mapping[int, int]:
        arch = arch_of(self.image)
        names = arch.dwarf_registers
        numbers = guest_of(self.image, arch.name).registers.places
        places = {name: n for n, name in numbers.items()}
        return {n: places[name] for n, name in enumerate(names) if name in places}

    def located(self, index: int, typed: bool) -> Located | None:
        copies = any(probe.inlined for probe in self._clause)
        if copies:
            return self._at_copies(index)
        places: dict[int, Place | None] = {}
        parameters: dict[str, tuple[str, Procedure]] = {}
        with PROGRESS.working(f"looking where argument {index} is"):
            for probe in self._clause:
                if not self._in_context(probe, index, typed):
                    places[probe.number] = self._place(probe, index, typed)
                    if len(places) > MOST_PLACES:
                        raise KinstError(f"argument {index} is asked for at more than "
                                         f"{MOST_PLACES} probes: name fewer functions")
                if typed:
                    self._note_type(probe, parameters)
        if typed and len(parameters) > 1:
            raise KinstError("args[]: several functions of different types have the name "
                             f"{next(iter(parameters.values()))[0]}")
        if not places:
            return None
        what, kind = f"arg{index}", cast(Type, LONG)
        if typed:
            if not parameters:
                return None
            name, procedure = next(iter(parameters.values()))
            if index >= len(procedure.parameters):
                raise KinstError(f"index {index} is out of range for args[ ]: "
                                 f"{declare(procedure, name)}")
            parameter = procedure.parameters[index]
            what, kind = f"args[{index}] ('{parameter.name}' of {name})", parameter.type
        return Located(what, kind, places, len(places) < len(self._clause), "",
                       lambda kept, count: self._once(
                           f"{what} is known at {kept} of {count} probes; at the others a clause "
                           "that reads it ends with an error"))

    def _note_type(self, probe: ListedProbe, known: dict[str, tuple[str, Procedure]]) -> None:
        function = self.probes.function(probe)
        procedure = None if function is None else self.arguments.procedure(function)
        if function is not None and procedure is not None:
            if id(procedure) not in self._spelled:
                self._spelled[id(procedure)] = procedure, _spelled(procedure)
            known[self._spelled[id(procedure)][1]] = function.name, procedure

    def _in_context(self, probe: ListedProbe, index: int, typed: bool) -> bool:
        """Whether the context of a probe's firing holds an argument."""
        function = self.probes.function(probe)
        if function is None:
            return index < HELD  # DTrace's own, or a static one: all that it declares
        if probe.name == "return":
            return index < RETURNED
        if probe.name != "entry" or index >= IN_CONTEXT:
            return False
        offset = self.probes.offset(probe)
        if not self.arguments.plain(function, offset, index):
            return False
        if not typed:
            return True
        found = self.arguments.by_type(function, offset)
        return index < len(found) and found[index] == self.arguments.by_number(
            function, offset, index)

    def _place(self, probe: ListedProbe, index: int, typed: bool) -> Place | None:
        function = self.probes.function(probe)
        if function is None or probe.name == "return":
            return None
        offset = self.probes.offset(probe)
        if typed:
            found = self.arguments.by_type(function, offset)
            return found[index] if index < len(found) else None
        return self.arguments.by_number(function, offset, index)

    @functools.cached_property
    def arguments(self) -> Arguments:
        """Where the arguments of the kernel's functions are."""
        return Arguments(self.probes.breakpoints, self.types)

    def _at_copies(self, index: int) -> Located | None:
        """Where a parameter of inline functions is at their copies."""
        places: dict[int, Place | None] = {}
        procedures: dict[str, tuple[str, Procedure]] = {}  # by their types, spelled out
        with PROGRESS.working(f"looking where args[{index}] is kept"):
            for probe in self._clause:
                at: set[Place | None] = set()
                for copy, address in self.probes.entered(probe):
                    known = (self.types.inlined(copy, address)
                             if isinstance(self.types, DwarfTypes | LinkedTypes) else None)
                    procedure, found = known if known is not None else (NOTHING, [])
                    if id(procedure) not in self._spelled:
                        self._spelled[id(procedure)] = procedure, _spelled(procedure)
                    procedures[self._spelled[id(procedure)][1]] = copy.name, procedure
                    at.add(found[index] if index < len(found) else None)
                if at:  # copies that begin at one place must keep it in one
                    places[probe.number] = at.pop() if len(at) == 1 else None
        if not places:
            return None
        (name, procedure), *others = procedures.values()
        if others:
            raise KinstError("args[]: several inline functions of different types have the name "
                             f"{name}")
        if index >= len(procedure.parameters):
            raise KinstError(f"index {index} is out of range for args[ ]: "
                             f"{declare(procedure, name)}")
        parameter = procedure.parameters[index]
        what = f"args[{index}] ('{parameter.name}' of {name})"
        return Located(
            what, parameter.type, places, len(places) < len(self._clause),
            f"{what} is kept by the compiler at none of its {len(places)} inline copies",
            lambda kept, count: self._once(
                f"{what} is kept by the compiler at {kept} of {count} inline copies; at the others "
                "a clause that reads it ends with an error"))

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def symbol(self, module: str, name: str) -> tuple[int, Type] | None:
        if self.types is None:
            return None
        symbol = self.image.symbols.find(name)
        if symbol is not None and module not in ("", symbol.module, symbol.module_name):
            symbol = next((s for s in self.image.symbols.named(name)
                           if module in (s.module, s.module_name)), None)
        if symbol is None:
            if (module, name) not in self._modules:
                self._modules[module, name] = self._not_loaded(module, name)
            return self._modules[module, name]
        kind = self.types.variable(name, symbol.address)
        if kind is None:
            kind = self.types.function(name, symbol.address)
        return None if kind is None else (symbol.address, kind)

    def _not_loaded(self, module: str, name: str) -> tuple[int, Type] | None:
        """A variable of a module beside the kernel: as its file has it."""
        assert self.types is not None
        for file in modules(self.image.path, name) if name.isidentifier() else ():
            if module not in ("", file.path.stem):
                continue
            found = variable(file, name, self.types)
            if found is not None:
                self.say(f"`{name} has the value of {file.path.name}, which is not loaded")
                return self.place(found[0]), found[1]
        return None

    def argument(self, index: int) -> Type | None:
        static = None if self.probe is None else self.probes.declared(self.probe)
        if static is not None:
            return self._declared(static, index)
        procedure = self._procedure()
        if procedure is None or self.probe is None:
            return None
        if self.probe.name == "return":
            return procedure.result if index == 1 else None
        if index < len(procedure.parameters):
            return procedure.parameters[index].type
        return None

    def _declared(self, static: StaticProbe, index: int) -> Type | None:
        if static.call is not None and not static.call.returns:
            return self._of_call(static.call, index)
        if index >= len(static.arguments):
            return None
        return spelled_type(static.arguments[index].type, Universe(self.types))

    def translated(self, index: int) -> str:
        static = None if self.probe is None else self.probes.declared(self.probe)
        if static is None or index >= len(static.arguments):
            return ""
        argument = static.arguments[index]
        return "" if argument.translated == argument.type else argument.translated

    def listed(self, probe: ListedProbe) -> list[str]:
        """The types of a probe's arguments, as ``dtrace -lv`` has them."""
        self.entered([probe])
        if probe.provider == "kinst":
            return []
        static = self.probes.declared(probe)
        found = [] if static is None else [a.translated or a.type for a in static.arguments]
        if found:
            return found
        returns = static is None and probe.name == "return"
        while len(found) < MOST_ARGUMENTS:
            kind = self.argument(len(found))
            if kind is None and not (returns and not found):
                break
            user = "userland " if static is not None and isinstance(
                strip(kind) if kind is not None else None, Pointer) else ""
            # Where a function returns, the first is where in it.
            found.append("int" if kind is None else user + declare(kind))
        return found[:-1] if returns and found[-1] == "void" else found

    def _of_call(self, call: SystemCall, index: int) -> Type | None:
        if self.types is None:
            return None
        members = arguments(self.types, self.image, call.function)
        return members[index].type if index < len(members) else None

    def _procedure(self) -> Procedure | None:
        probe = self.probe
        if self.types is None or probe is None or probe.name not in ("entry", "return"):
            return None
        for symbol in self.image.symbols.named(probe.function):
            if symbol.module_name != probe.module:
                continue
            return self.types.function(probe.function, symbol.address)
        return None


# The upper bits of an address are all set, or none is.  In a stack for inline functions two
# of them say whether a frame's address is an instruction, or where a call returns to.
UPPER = 1 << 63
MARKS, INSTRUCTION, CALLER = 3 << 61, 1 << 61, 2 << 61


@dataclass
class KernelSymbols:
    """Addresses by the kernel's functions.

    :param lines: gives the lines of a frame with inline functions: of an address, and whether it is
        where a call returns to.
    :param programs: those whose frames are in stacks of users.
    """

    image: Image
    lines: Callable[[int, bool], list[str]] | None = None
    programs: UserPrograms = field(default_factory=UserPrograms)

    def frames(self, value: int) -> list[str]:
        if self.programs.is_frame(value):
            return [self.programs.line(value)]
        mark = value & MARKS
        if mark not in (INSTRUCTION, CALLER) or self.lines is None:
            return [self.address(value)]
        return self.lines(value | MARKS if value & UPPER else value & ~MARKS, mark == CALLER)

    def address(self, value: int) -> str:
        if self.programs.is_frame(value):
            return self.programs.line(value)
        symbol = self._symbol_at(value)
        if symbol is None:
            module = self.module(value)
            return module if module.startswith("0x") else f"{module}`{value:#x}"
        offset = value - symbol.address
        return f"{symbol.module}`{symbol.name}" + (f"+{offset:#x}" if offset else "")

    def _symbol_at(self, value: int) -> Symbol | None:
        """The function or variable that an address is in."""
        symbols = self.image.symbols
        return symbols.function_at(value) or symbols.object_at(value)

    def symbol(self, value: int) -> str:
        if self.programs.is_frame(value):
            return self.programs.line(value, offset=False)
        symbol = self._symbol_at(value)
        if symbol is None:
            return self.address(value)  # an address in no symbol, as of ``%a``
        return f"{symbol.module}`{symbol.name}"

    def start(self, how: str, value: int) -> int:
        if self.programs.is_frame(value):
            return (self.programs.start(value) if how in ("usym", "ufunc") else
                    value & ~ADDRESS if how == "umod" else value)
        symbol = self._symbol_at(value)
        if symbol is None or how not in ("sym", "func", "mod"):
            return value
        if how != "mod":
            return symbol.address
        module = self.image.module_at(value)
        return self.image.segments[0].virtual if module is None else module.address

    def module(self, value: int) -> str:
        if self.programs.is_frame(value):
            return self.programs.name(value)
        function = self.image.symbols.function_at(value)
        if function is not None:
            return function.module
        module = self.image.module_at(value)
        if module is not None:
            return module.name
        inside = any(s.virtual <= value < s.virtual_end for s in self.image.segments)
        return KERNEL if inside else f"{value:#x}"
