"""A program on an emulated kernel: its probes, its types and symbols, what it asks the guest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dtrace.bpf._runtime import Runtime, RuntimeFault
from dtrace.bpf.layout import Fault
from dtrace.d.identifiers import HOSTED_NUMBERS
from dtrace.d.program import Probe
from dtrace.d.surroundings import Located
from dtrace.description import Description, create, modules_of
from dtrace.run.timers import GLOB, OwnProbes
from dtrace.stack import MAX_FRAMES, Stacks
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, Function
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Location
from dwarf.module import modules, variable
from dwarf.types import (
    Pointer,
    Procedure,
    Structure,
    Type,
    Types,
    Void,
    declare,
    find_member,
    size_of,
    strip,
)
from emu.architectures import arch_of
from emu.elf import Image
from emu.errors import KinstError, MemoryAccessError
from emu.guests import guest_of
from emu.machine import Stop, StopReason
from emu.progress import PROGRESS
from emu.unicorn.run_loop import Alarm
from kinst.breakpoints import Breakpoints, NativeState
from kinst.functions import matches
from kinst.probe_table import Probe as KernelProbe
from kinst.probe_table import ProbeTable
from kinst.trap import TRAPS, CpuState

FIRST_PROBE = 100  # the ID of a kernel's first probe: behind DTrace's own


@dataclass
class KernelProbes:
    """DTrace's own probes, and those of a kernel, which are made when they are asked for.

    :param index: gives the debug data, for inline functions.
    """

    breakpoints: ProbeTable
    unsafe: bool
    index: Callable[[], DebugIndex] | None
    own: OwnProbes = field(default_factory=OwnProbes)

    def __post_init__(self) -> None:
        self._base = FIRST_PROBE
        self._asked: dict[tuple[str, str, str, str], list[Probe]] = {}
        self._copies: dict[int, Function] = {}

    def match(self, parts: tuple[str, str, str, str]) -> Sequence[Probe]:
        """Those of a description.

        :raises KinstError: saying why a place cannot be probed.
        """
        if parts not in self._asked:
            self._asked[parts] = [*self.own.match(parts), *self._kernel(parts)]
        return self._asked[parts]

    def _kernel(self, parts: tuple[str, str, str, str]) -> list[Probe]:
        provider, module, function, name = parts
        known = modules_of(self.breakpoints.image)
        if provider in ("dtrace", "profile") or not any(matches(module, one) for one in known):
            return []
        if not provider and not function and not GLOB.search(name) and name not in (
                "entry", "return", ""):
            return []  # BEGIN and the like
        text = ":".join(parts)
        try:
            made = create(self.breakpoints, Description(text, provider, module, function, name),
                          self.unsafe, self.index)
        except KinstError as error:
            raise KinstError(str(error).removeprefix(f"invalid probe specifier {text}: ")) from None
        self._copies |= {copy.number: copy for found in made.copies.values() for copy in found}
        return [self._probe(number, tuple(c.number for c in made.copies.get(number, ())))
                for number in dict.fromkeys(made.numbers)]

    def _probe(self, number: int, inlined: tuple[int, ...] = ()) -> Probe:
        provider, module, function, name = self.breakpoints.names(number)
        return Probe(self._base + number, provider, module, function, name, inlined)

    def entered(self, probe: Probe) -> list[tuple[Function, int]]:
        """The inline copies that a probe stands for, each with the probe's address."""
        if not probe.inlined:
            return []
        address = self.breakpoints.probe(probe.number - self._base).instruction.address
        return [(self._copies[number], address) for number in probe.inlined]

    def kernel_number(self, number: int) -> int | None:
        """The number of a kernel's probe in its table, by its ID; None for one of DTrace's own."""
        return number - self._base if number >= self._base else None

    def numbered(self, number: int) -> Probe | None:
        if number < self._base:
            return self.own.numbered(number)
        known = number - self._base
        return self._probe(known) if known < len(self.breakpoints.probes) else None


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
    probe: Probe | None = None
    _clause: Sequence[Probe] = ()
    _said: set[str] = field(default_factory=set)
    _spelled: dict[int, tuple[Procedure, str]] = field(default_factory=dict)
    _modules: dict[tuple[str, str], tuple[int, Type] | None] = field(default_factory=dict)

    def entered(self, probes: Sequence[Probe]) -> None:
        """Probes of several functions have no arguments of one type."""
        names = {(p.function, p.name) for p in probes}
        self.probe = probes[0] if len(names) == 1 else None
        self._clause = probes

    @property
    def registers(self) -> Mapping[int, int]:
        arch = arch_of(self.image)
        names = arch.dwarf_registers
        numbers = guest_of(self.image, arch.name).registers.places
        places = {name: n for n, name in numbers.items()}
        return {n: places[name] for n, name in enumerate(names) if name in places}

    def located(self, index: int) -> Located | None:
        places: dict[int, Location | None] = {}
        procedures: dict[str, tuple[str, Procedure]] = {}  # by their types, spelled out
        with PROGRESS.working(f"looking where args[{index}] is kept"):
            for probe in self._clause:
                at: set[Location | None] = set()
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
        return Located(parameter.name, name, parameter.type, places,
                       len(places) < len(self._clause), self._once)

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
        for path in modules(self.image.path, name) if name.isidentifier() else ():
            if module not in ("", path.stem):
                continue
            found = variable(path, name, self.types)
            if found is not None:
                self.say(f"`{name} has the value of {path.name}, which is not loaded")
                return self.place(found[0]), found[1]
        return None

    def argument(self, index: int) -> Type | None:
        procedure = self._procedure()
        if procedure is None or self.probe is None:
            return None
        if self.probe.name == "return":
            return procedure.result if index == 1 else None
        if index < len(procedure.parameters):
            return procedure.parameters[index].type
        return None

    def _procedure(self) -> Procedure | None:
        probe = self.probe
        if self.types is None or probe is None or probe.name not in ("entry", "return"):
            return None
        for symbol in self.image.symbols.named(probe.function):
            if symbol.module_name != probe.module:
                continue
            return self.types.function(probe.function, symbol.address)
        return None


# Kernels lie where the upper bits of an address are all set.  In a stack recorded for inline
# functions two of them say whether a frame's address is an instruction, or where a call returns to.
MARKS, INSTRUCTION, CALLER = 3 << 61, 1 << 61, 2 << 61


@dataclass
class KernelSymbols:
    """Addresses by the kernel's functions.

    :param lines: gives the lines of a frame with inline functions: of an address, and whether it is
        where a call returns to.
    """

    image: Image
    lines: Callable[[int, bool], list[str]] | None = None

    def frames(self, value: int) -> list[str]:
        mark = value & MARKS
        if mark not in (INSTRUCTION, CALLER) or self.lines is None:
            return [self.address(value)]
        return self.lines(value | MARKS, mark == CALLER)

    def address(self, value: int) -> str:
        function = self.image.symbols.function_at(value)
        if function is None:
            return f"{value:#x}"
        offset = value - function.address
        return f"{function.module}`{function.name}" + (f"+{offset:#x}" if offset else "")

    def symbol(self, value: int) -> str:
        function = self.image.symbols.function_at(value)
        return f"{value:#x}" if function is None else f"{function.module}`{function.name}"

    def start(self, how: str, value: int) -> int:
        function = self.image.symbols.function_at(value)
        if function is None or how not in ("sym", "func", "mod"):
            return value
        if how != "mod":
            return function.address
        module = self.image.module_at(value)
        return self.image.segments[0].virtual if module is None else module.address

    def module(self, value: int) -> str:
        function = self.image.symbols.function_at(value)
        return f"{value:#x}" if function is None else function.module


IN_REGISTERS, AT_RETURN, UNKNOWN = 0, 1, 2  # where a probe's arguments are


class GuestState:
    """What a program asks of the guest: the thread, its process, the stack; and its probes.

    A program's code reads the guest's memory and the thread itself (``Runtime.attach``).

    :param stops: what runs ends when tracing does.
    """

    def __init__(self, probes: KernelProbes, types: Types | None, stops: bool = True) -> None:
        breakpoints = probes.breakpoints
        self._stops = stops
        assert isinstance(breakpoints, Breakpoints)
        self._probes, self._types, self._breakpoints = probes, types, breakpoints
        self._machine = breakpoints.machine
        # The interrupted registers in a firing, unless who lets it fire has others.
        self.state: CpuState | NativeState = NativeState(
            breakpoints.dispatcher, list(self._machine.arch.registers))
        self._stacks: Stacks | None = None
        self._runtime: Runtime | None = None

    @property
    def now(self) -> int:
        """The time of a firing: virtual nanoseconds, to the instruction."""
        engine = self._machine.engine
        return int(engine.instructions + engine.skew)

    def attach(self, runtime: Runtime) -> None:
        """Let a runtime work on this guest."""
        machine = self._machine
        self._runtime = runtime
        number = machine.cpu.model.registers[machine.guest.per_cpu]
        runtime.attach(machine.engine, number, len(self._breakpoints.probes))
        runtime.set_variable(HOSTED_NUMBERS["curthread"], [], 8, False)
        known = list(machine.arch.registers)
        for index, name in machine.guest.registers.places.items():
            if name in known:
                runtime.set_register(index, known.index(name))
        for name, members in machine.guest.members.items():
            places = [self._member(*member) for member in members]
            if None not in places:
                found = [place for place in places if place is not None]
                runtime.set_variable(HOSTED_NUMBERS[name], [offset for offset, _size in found],
                                     min(found[-1][1], 8), name == "execname")

    def add(self, probe: Probe, entry: int, first: int, texts: Sequence[int], wanted: int) -> bool:
        """Give a probe of the kernel its program; whether it is one."""
        number = self._probes.kernel_number(probe.number)
        if number is None or self._runtime is None:
            return False
        kind, offset = UNKNOWN, 0
        if probe.provider == "fbt":
            kind = AT_RETURN if probe.name == "return" else IN_REGISTERS
        if kind == AT_RETURN:
            offset = self._breakpoints.offset(number)
        self._runtime.add_probe(number, entry, probe.number, first, texts, kind, offset, wanted)
        return True

    @property
    def time(self) -> int:
        """The guest's clock, as its devices see it."""
        return self._machine.now

    @property
    def pc(self) -> int:
        return self._machine.pc

    @property
    def thread(self) -> int:
        """``struct thread *curthread``: ``struct pcpu`` begins with it; 0 where there is none."""
        try:
            return self._machine.read_u64(self._machine.read_register(self._machine.guest.per_cpu))
        except MemoryAccessError:
            return 0

    def run(self, workload: Callable[[], None], due: int | None,
            ring: Callable[[], int | None]) -> None:
        """Run something while the probes are enabled.

        :param due: when to call ``ring`` first; None for never.  It gives the next time.
        """
        self.begin()
        self.arm(due, ring)
        try:
            workload()
        finally:
            self.end()

    def begin(self) -> None:
        """Enable the probes."""
        runtime, breakpoints = self._runtime, self._breakpoints
        assert runtime is not None
        breakpoints.dispatcher.act_by(runtime.firing_action(), runtime.take_failure)
        breakpoints.enable()

    def arm(self, due: int | None, ring: Callable[[], int | None]) -> None:
        """Set the timer; ``due`` and ``ring`` as of ``run``."""
        self._machine.alarm = None if due is None else Alarm(due, ring)

    def end(self) -> None:
        """Disable them."""
        assert self._runtime is not None
        self._machine.alarm = None
        self._breakpoints.disable()
        self._breakpoints.dispatcher.act_by(None, self._runtime.take_failure)

    def stop(self) -> None:
        """End what runs, before its next block."""
        if not self._stops:
            return
        self._machine.request_stop(Stop(StopReason.INTERRUPTED, 0))

    def _fired(self) -> KernelProbe | None:
        """The kernel's probe that fires; None for one of DTrace's own."""
        if self._runtime is None:
            return None
        kernel = self._probes.kernel_number(self._runtime.probe)
        return None if kernel is None else self._breakpoints.probe(kernel)

    def _read(self, register: str) -> int:
        if self._fired() is None:
            return self._machine.read_register(register)
        return self.state.get(register)

    def _walk(self) -> Stacks:
        if self._stacks is None:
            self._stacks = Stacks(self._machine)
        return self._stacks

    def lines(self, address: int, is_return: bool) -> list[str]:
        """The lines of a frame, with inline functions and source lines."""
        return self._walk().lines(address, is_return)

    def stack(self, frames: int, user: bool, marked: bool = False) -> list[int]:
        """Addresses, inner ones first; of user space nothing is known.

        Of an FBT probe the function's own frame is left out, as DTrace does.

        :param marked: tell with MARKS of each what it is.
        """
        if user:
            return []
        fired = self._fired()
        own = int(fired is not None and fired.provider == "fbt")
        read = self._machine.read_register if fired is None else self.state.get
        found = list(self._walk().addresses(read, frames + own))[own:]
        return [pc & ~MARKS | (CALLER if is_return else INSTRUCTION) if marked else pc
                for pc, is_return in found]

    def _member(self, structure: str, name: str) -> tuple[int, int] | None:
        """Offset and size of a member."""
        found = [] if self._types is None else self._types.named(f"struct {structure}")
        kind = strip(found[0]) if found else None
        member = find_member(kind, name) if isinstance(kind, Structure) else None
        return None if member is None else (member.offset // 8, size_of(member.type))

    def values(self) -> dict[str, Callable[[], int | bytes | None]]:
        """Variables that no walk from the thread finds, by name."""
        return {
            "cpu": lambda: self._machine.cpu.number, "jid": lambda: 0, "ipl": lambda: None,
            "caller": self._caller,
            "stackdepth": lambda: len(self.stack(MAX_FRAMES, False)), "ucaller": lambda: 0,
            "ustackdepth": lambda: 0,
            **dict.fromkeys((*self._machine.guest.members, "execargs"), lambda: None)}

    def _caller(self) -> int:
        """The first frame of another function."""
        fired = self._fired()
        own = int(fired is None or fired.provider != "fbt")
        frames = self.stack(1 + own, False)
        return frames[own] if len(frames) > own else 0

    def register(self, array: str, index: int) -> int | None:
        """``regs[n]``, ``uregs[n]``; None where there is none.

        A register of the user is in the trap frame that its thread made at the last entry into the
        kernel (``td_frame``).

        :raises RuntimeFault: when that is nowhere.
        """
        arch = self._machine.arch
        name = self._machine.guest.registers.places.get(index)
        if name is None:
            return None
        if array == "regs":
            return self._read(name) if name in arch.registers else None
        field = TRAPS[arch.name].names.get(name, name)
        found = self._machine.guest.trap_frame.fields.get(field)
        if found is None:
            return 0 if name == "zero" else None
        place = self._member("thread", "td_frame")
        # struct pcpu begins with the thread.
        frame = 0 if place is None else self._number(
            self._number(self._machine.read_register(self._machine.guest.per_cpu)) + place[0])
        if not frame:  # a thread that has never been outside the kernel, as FreeBSD says it
            raise RuntimeFault(Fault.BAD_ADDRESS, 0)
        return self._number(frame + found[0], found[1])

    def _number(self, address: int, size: int = 8) -> int:
        """:raises RuntimeFault: where there is no memory."""
        assert self._runtime is not None
        return int.from_bytes(self._runtime.read(address, size), "little")
