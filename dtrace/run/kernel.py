"""Types, variables and symbols of the kernel that a D program traces."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.spelled_types import spelled_type
from dtrace.d.language.surroundings import KernelSymbol, Located
from dtrace.d.language.types import INT, LONG, Universe
from dtrace.debug.program_types import program_types, types_when_moved
from dtrace.run.kernel_probes import KernelProbes
from dtrace.run.local_variables import LocalVariables
from dtrace.stacks.user_programs import UserPrograms
from dwarf.dwarf_types import DwarfTypes
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Place
from dwarf.module_variables import modules, variable
from dwarf.types import (
    Float,
    Pointer,
    Procedure,
    Qualified,
    Structure,
    Type,
    Types,
    Void,
    declare,
    size_of,
    strip,
)
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.elf.program import ProgramFile
from emu.elf.symbols import KERNEL, Symbol
from emu.guest.static_probe import StaticProbe, SystemCall
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from kinst.probes.arguments import Arguments
from kinst.probes.system_calls import arguments

MOST_ARGUMENTS = 256  # maximum number of arguments listed for a function
HELD = 10  # number of arguments that the context of a firing can hold
IN_CONTEXT = 5  # number of function arguments in the context of an entry probe
RETURNED = 2  # number of arguments of a return probe: offset in the function and return value
MOST_PLACES = 200_000  # maximum number of probes at which a clause may read an argument
NOTHING = Procedure((), False, Void)


def _spelled(procedure: Procedure) -> str:
    """Format a prototype, with the sizes of the structures to which the parameters point.

    The sizes matter because two files may define different structures with the same name.
    """
    sizes = [size_of(strip(kind.target)) for p in procedure.parameters
             if isinstance(kind := strip(p.type), Pointer)
             and isinstance(strip(kind.target), Structure)]
    return f"{declare(procedure, '')} {sizes}"


@dataclass
class KernelSurroundings:
    """A kernel's variables, and the types and locations of probe arguments, for the compiler.

    :param types: the kernel's types, or None if it has none.
    :param place: adds bytes to the program's constants, and returns their address.
    :param say: prints a message on standard error.
    """

    image: Image
    types: Types | None
    probes: KernelProbes
    place: Callable[[bytes], int]
    say: Callable[[str], None]
    probe: ListedProbe | None = None
    universe: Universe | None = None  # types that the program can name
    _clause: Sequence[ListedProbe] = ()
    _said: set[str] = field(default_factory=set)
    _spelled: dict[int, tuple[Procedure, str]] = field(default_factory=dict)
    _modules: dict[tuple[str, str], KernelSymbol | None] = field(default_factory=dict)
    _of_programs: dict[ProgramFile, Arguments] = field(default_factory=dict)
    _last: tuple[ListedProbe, Procedure | None] | None = None  # a probe, and its function's type

    def entered(self, probes: Sequence[ListedProbe]) -> None:
        """Set the probes of the current clause.

        If they belong to different functions, their arguments have no types, unless programs
        declare them with the same types.
        """
        self._clause, self.probe = probes, probes[0] if probes else None
        if self.probe is not None and len(probes) > 1:
            declaration = self._declaration(self.probe)
            if any(self._declaration(probe) != declaration for probe in probes):
                self.probe = None

    def _declaration(self, probe: ListedProbe) -> tuple[object, ...]:
        """Return what says the types of a probe's arguments."""
        static = self.probes.declared(probe)
        if static is not None and static.attributes:
            return static.arguments
        return probe.provider, probe.function, probe.name

    @property
    def registers(self) -> Mapping[int, int]:
        """Mapping from DWARF register numbers to indices in ``regs[]``."""
        arch = arch_of(self.image)
        names = arch.dwarf_registers
        numbers = guest_of(self.image, arch.name).registers.places
        places = {name: n for n, name in numbers.items()}
        return {n: places[name] for n, name in enumerate(names) if name in places}

    def located(self, index: int, typed: bool) -> Located | None:
        """Return the locations of an argument at the probes of the current clause."""
        if any(probe.inlined for probe in self._clause):
            return self._at_copies(index, typed)
        places: dict[int, Place | None] = {}
        parameters: dict[str, tuple[str, Procedure]] = {}
        with PROGRESS.working(f"locating argument {index}"):
            for probe in self._clause:
                if not self._in_context(probe, index, typed):
                    places[probe.number] = self._place(probe, index, typed)
                    if len(places) > MOST_PLACES:
                        raise KinstError(f"argument {index} is read at more than "
                                         f"{MOST_PLACES} probes; probe fewer functions")
                if typed:
                    self._note_type(probe, parameters)
        if typed and len(parameters) > 1:
            raise KinstError("args[]: not all probed functions have the same type as "
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
            what, kind = _said(index, parameter.name, name), parameter.type
        return Located(what, kind, places, len(places) < len(self._clause), "",
                       lambda kept, count: self._once(
                           f"{what} is available at {kept} of {count} probes; a clause that reads "
                           "it at another probe ends with an error"))

    def _arguments_of(self, probe: ListedProbe, function: Symbol
                      ) -> tuple[Arguments | None, Symbol]:
        """Return the locations of arguments for a probe's function, and this function.

        In a program, they are known only at its entry; without its types, only by number.
        """
        inside = self.probes.program_function(probe)
        if inside is None:
            return None if self.probes.in_program(probe) else self.arguments, function
        one, unmoved = inside
        if one.file not in self._of_programs:
            self._of_programs[one.file] = Arguments(self.probes.breakpoints,
                                                    program_types(one.file))
        return (None if self.probes.offset(probe) else self._of_programs[one.file]), unmoved

    def _note_type(self, probe: ListedProbe, known: dict[str, tuple[str, Procedure]]) -> None:
        function, procedure = self.probes.function(probe), None
        if function is not None:
            arguments, function = self._arguments_of(probe, function)
            procedure = None if arguments is None else arguments.procedure(function)
        if function is not None and procedure is not None:
            if id(procedure) not in self._spelled:
                self._spelled[id(procedure)] = procedure, _spelled(procedure)
            known[self._spelled[id(procedure)][1]] = function.name, procedure

    def _in_context(self, probe: ListedProbe, index: int, typed: bool) -> bool:
        """Return whether the context of a probe's firing holds an argument."""
        function = self.probes.function(probe)
        if function is None:
            return index < HELD  # DTrace's own and static probes pass all arguments in the context
        if probe.name == "return":
            return index < RETURNED
        if probe.name != "entry" or index >= IN_CONTEXT:
            return False
        offset = self.probes.offset(probe)
        arguments, function = self._arguments_of(probe, function)
        if arguments is None or not arguments.plain(function, offset, index):
            return False
        if not typed:
            return True
        locations = arguments.by_type(function, offset)
        return index < len(locations) and locations[index] == arguments.by_number(
            function, offset, index)

    def _place(self, probe: ListedProbe, index: int, typed: bool) -> Place | None:
        function = self.probes.function(probe)
        if function is None or probe.name == "return":
            return None
        offset = self.probes.offset(probe)
        arguments, function = self._arguments_of(probe, function)
        if arguments is None:
            return None
        if typed:
            locations = arguments.by_type(function, offset)
            return locations[index] if index < len(locations) else None
        return arguments.by_number(function, offset, index)

    def local(self, name: str) -> Located:
        """Return the locations of a local variable at the probes of the current clause."""
        return self._locals.located(name, self._clause)

    @functools.cached_property
    def _locals(self) -> LocalVariables:
        return LocalVariables(self.probes, self.arguments, self.types, self._once)

    @functools.cached_property
    def arguments(self) -> Arguments:
        """Locations of the arguments of the kernel's functions."""
        return Arguments(self.probes.breakpoints, self.types)

    def _at_copies(self, index: int, typed: bool) -> Located | None:
        """Return the locations of an inline function's parameter in the inline copies.

        The clause may also have probes on functions.
        """
        places: dict[int, Place | None] = {}
        procedures: dict[str, tuple[str, Procedure]] = {}  # formatted prototype -> (name, type)
        copies = [probe for probe in self._clause if probe.inlined]
        with PROGRESS.working(f"locating args[{index}]"):
            for probe in copies:
                places[probe.number] = self._at_copy(probe, index, procedures)
            own = next(iter(procedures.values()), None)
            for probe in self._clause:
                if probe.inlined:
                    continue
                self._note_type(probe, found := dict[str, tuple[str, Procedure]]())
                procedures |= found
                if typed and not found:
                    places[probe.number] = None  # its arguments have unknown types
                elif not self._in_context(probe, index, typed):
                    places[probe.number] = self._place(probe, index, typed)
        if own is None:
            return None
        name, procedure = own
        if len(procedures) > 1:
            if typed:
                raise KinstError("args[]: not all probed functions have the same type as "
                                 f"{name}")
            places |= dict.fromkeys((probe.number for probe in copies), None)
        if index >= len(procedure.parameters):
            raise KinstError(f"index {index} is out of range for args[ ]: "
                             f"{declare(procedure, name)}")
        parameter = procedure.parameters[index]
        what = _said(index, parameter.name, name) if typed else f"arg{index}"
        where = "its only inline copy" if len(copies) == 1 else f"all {len(copies)} inline copies"
        return Located(
            what, parameter.type if len(procedures) == 1 else LONG, places,
            len(places) < len(self._clause),
            f"{what} is optimized out at {where}" if len(places) == len(copies) else "",
            lambda kept, count: self._once(
                f"{what} is available at {kept} of {count} inline copies; a clause that reads it "
                "at another copy ends with an error"))

    def _at_copy(self, probe: ListedProbe, index: int,
                 procedures: dict[str, tuple[str, Procedure]]) -> Place | None:
        """Return the location of a parameter where an inline copy is entered; note its type."""
        inside = self.probes.program_function(probe)
        types = (types_when_moved(inside[0].file, inside[0].moved)
                 if inside is not None else self.types)
        found: set[Place | None] = set()
        for copy, address in self.probes.entered(probe):
            known = (types.inlined(copy, address)
                     if isinstance(types, DwarfTypes | LinkedTypes) else None)
            procedure, places = known if known is not None else (NOTHING, [])
            if id(procedure) not in self._spelled:
                self._spelled[id(procedure)] = procedure, _spelled(procedure)
            procedures[self._spelled[id(procedure)][1]] = copy.name, procedure
            found.add(places[index] if index < len(places) else None)
        # All copies at an address must have the parameter in the same place.
        return found.pop() if len(found) == 1 else None

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def symbol(self, module: str, name: str) -> KernelSymbol | None:
        """Return a variable or function, or None if the name is unknown."""
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
        if kind is None and self.image.holds_code(symbol.address):
            kind = Procedure((), False, lambda: INT)
        return KernelSymbol(symbol.address, kind, symbol.module)

    def _not_loaded(self, module: str, name: str) -> KernelSymbol | None:
        """Return a variable of a module that is not loaded, with its value in the module's file."""
        assert self.types is not None
        for file in modules(self.image.path, name) if name.isidentifier() else ():
            if module not in ("", file.path.stem):
                continue
            content = variable(file, name, self.types)
            if content is not None:
                self.say(f"`{name}: using the value in {file.path.name}, which is not loaded")
                return KernelSymbol(self.place(content[0]), content[1], file.path.stem)
        return None

    def argument(self, index: int) -> Type | None:
        """Return the type of ``args[index]`` in the current clause, or None if unknown."""
        static = None if self.probe is None else self.probes.declared(self.probe)
        if static is not None:
            return self._declared(static, index)
        procedure = self._procedure()
        if procedure is None or self.probe is None:
            return None
        if self.probe.name == "return":
            if self.probes.in_program(self.probe) and isinstance(
                    strip(procedure.result), Float | Structure):
                return None  # the value is not in the register that holds other results
            return procedure.result if index == 1 else None
        if index < len(procedure.parameters):
            return procedure.parameters[index].type
        return None

    def _declared(self, static: StaticProbe, index: int) -> Type | None:
        if static.call is not None and not static.call.returns:
            return self._of_call(static.call, index)
        if index >= len(static.arguments):
            return None
        spelled = static.arguments[index].type
        kind = spelled_type(spelled, self.universe or Universe(self.types))
        if kind is None and static.attributes:
            raise KinstError(f"the type of args[{index}] ({spelled[:80]}) is unknown; define it in "
                             f"the program, or use arg{index}")
        return kind

    def translated(self, index: int) -> str:
        """Return the type to which ``args[index]`` is translated, or "" if it is not translated."""
        static = None if self.probe is None else self.probes.declared(self.probe)
        if static is None or index >= len(static.arguments):
            return ""
        argument = static.arguments[index]
        return "" if argument.translated == argument.type else argument.translated

    def listed(self, probe: ListedProbe) -> list[str]:
        """Return the types of a probe's arguments, as ``dtrace -lv`` prints them."""
        self.entered([probe])
        if probe.provider == "kinst":
            return []
        static = self.probes.declared(probe)
        types = [] if static is None else [a.translated or a.type for a in static.arguments]
        if types:
            return [_unqualified(text) for text in types]
        returns = static is None and probe.name == "return"
        procedure = self._procedure() if static is None and not returns else None
        if procedure is not None:
            return [_listed(one.type) for one in procedure.parameters[:MOST_ARGUMENTS]]
        while len(types) < MOST_ARGUMENTS:
            kind = self.argument(len(types))
            if kind is None and not (returns and not types):
                break
            # The first argument of a return probe is an offset, for which the kernel has no type.
            text = "int" if kind is None else _listed(kind)
            types.append("userland " * (static is not None and text.endswith("*")) + text)
        return types

    def _of_call(self, call: SystemCall, index: int) -> Type | None:
        if self.types is None:
            return None
        members = arguments(self.types, self.image, call.function)
        return members[index].type if index < len(members) else None

    def _procedure(self) -> Procedure | None:
        """Return the type of the function of the current clause's probe, or None if unknown."""
        if self.probe is None:
            return None
        if self._last is None or self._last[0] is not self.probe:
            self._last = self.probe, self._procedure_of(self.probe)
        return self._last[1]

    def _procedure_of(self, probe: ListedProbe) -> Procedure | None:
        if probe.name not in ("entry", "return"):
            return None
        inside = self.probes.program_function(probe)
        if inside is not None:
            types = program_types(inside[0].file)
            return None if types is None else types.function(probe.function, inside[1].address)
        if self.types is None or self.probes.in_program(probe):
            return None
        for symbol in self.image.symbols.named(probe.function):
            if symbol.module_name != probe.module:
                continue
            return self.types.function(probe.function, symbol.address)
        return None


def _listed(kind: Type) -> str:
    """Return the name of a type as ``dtrace -lv`` prints it."""
    while isinstance(kind, Qualified):
        kind = kind.target
    if isinstance(kind, Pointer) and isinstance(kind.target, Procedure):
        return "int (*)()"  # D has only one type of functions
    return _unqualified(declare(kind))


@functools.lru_cache(1 << 14)
def _unqualified(text: str) -> str:
    """Return the name of a type as dtrace(1) prints it: without qualifiers."""
    text = re.sub(r"\b(?:const|volatile|restrict)\b ?", "", text)
    return re.sub(r"(\w) ?\*", r"\1 *", text).replace("* *", "**").strip()


def _said(index: int, parameter: str, function: str) -> str:
    """Return a description of an argument; ``this`` of C++ has no name in the debug data."""
    return (f"args[{index}] ('{parameter}' of {function})" if parameter
            else f"args[{index}] of {function}")


# Bits that mark an address as an instruction or a return address in stacks with inline functions.
# The marks replace two of the address's upper bits; without the marks, all upper bits are equal.
UPPER = 1 << 63
MARKS, INSTRUCTION, CALLER = 3 << 61, 1 << 61, 2 << 61


@dataclass
class KernelSymbols:
    """Names of addresses in the kernel and in user programs.

    :param lines: returns the lines of a frame, with inline functions (address, whether it is a
        return address).
    :param programs: the programs with frames in user stacks.
    """

    image: Image
    lines: Callable[[int, bool], list[str]] | None = None
    programs: UserPrograms = field(default_factory=UserPrograms)

    def frames(self, value: int, callee: int = 0) -> list[str]:
        """Return the lines for one word of a recorded stack, innermost function first.

        :param callee: the word before it; 0: it is the first one.
        """
        if self.programs.is_frame(value):
            called = callee and callee not in self.programs.trampolines
            return [self.programs.line(value, is_return=bool(called))]
        mark = value & MARKS
        if mark not in (INSTRUCTION, CALLER) or self.lines is None:
            return [self.address(value)]
        return self.lines(value | MARKS if value & UPPER else value & ~MARKS, mark == CALLER)

    def address(self, value: int) -> str:
        """Return ``module`function+0x12`` for an address, or the address if it has no name."""
        if self.programs.is_frame(value):
            return self.programs.line(value)
        symbol = self._symbol_at(value)
        if symbol is None:
            module = self.module(value)
            return module if module.startswith("0x") else f"{module}`{value:#x}"
        offset = value - symbol.address
        return f"{symbol.module}`{symbol.name}" + (f"+{offset:#x}" if offset else "")

    def _symbol_at(self, value: int) -> Symbol | None:
        """Return the function or variable at an address, or None if there is no symbol."""
        symbols = self.image.symbols
        return symbols.function_at(value) or symbols.object_at(value)

    def symbol(self, value: int) -> str:
        """Return ``module`function`` for an address, without an offset."""
        if self.programs.is_frame(value):
            return self.programs.line(value, offset=False)
        symbol = self._symbol_at(value)
        if symbol is None:
            return self.address(value)  # without a symbol, format the address as ``%a`` does
        return f"{symbol.module}`{symbol.name}"

    def start(self, how: str, value: int) -> int:
        """Return the start of the function or module at an address; see ``Symbols.start``."""
        if self.programs.is_frame(value):
            return (self.programs.start(value) if how in ("usym", "ufunc") else
                    self.programs.module_start(value) if how == "umod" else value)
        symbol = self._symbol_at(value)
        if symbol is None or how not in ("sym", "func", "mod"):
            return value
        if how != "mod":
            return symbol.address
        module = self.image.module_at(value)
        return self.image.segments[0].virtual if module is None else module.address

    def module(self, value: int) -> str:
        """Return the name of the module at an address, or the address if it is in no module."""
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
