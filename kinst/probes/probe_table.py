"""The probes of a machine: made, named, looked up; nothing here writes to the guest."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from dwarf.members import MemberError
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.guest.static_probe import CallTable, StaticProbe
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Machine
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.running_thread import thread_word, watch_threads
from kinst.code.cold_parts import beginnings, is_cold
from kinst.code.listing import EXCLUSIVE, ProbedInstruction, check_size, instructions
from kinst.code.stack_depth import stack_depths
from kinst.probes import guards, operations, system_calls
from kinst.probes.dispatcher import new_dispatcher
from kinst.probes.inline_copies import WAY_OUT, ReadableState, goes_out
from kinst.probes.kinds import ProbeKind
from kinst.probes.traced_program import TracedProgram, offsets
from kinst.relocation.trap import CpuState, trap_of
from kinst.relocation.verdict import ConditionalJump, Copy, Refuse, Rewrite

# Provider and name of the probes of a kind; an offset stands in the probe's own name.
KINDS: dict[int, tuple[str, str]] = {
    ProbeKind.OFFSET: ("kinst", ""), ProbeKind.ENTRY: ("fbt", "entry"),
    ProbeKind.RETURN: ("fbt", "return"), ProbeKind.PROGRAM_OFFSET: ("pid", ""),
    ProbeKind.PROGRAM_ENTRY: ("pid", "entry"), ProbeKind.PROGRAM_RETURN: ("pid", "return")}
LONGEST_CODE = 15  # bytes of an instruction
FAR_JUMP = 4  # bytes of the first instruction of two that jump to any address (riscv64's AUIPC)
# Of the dispatcher, where a probe's number should be; what is refused is -2.
NO_INSTRUCTION, IN_EXCLUSIVE = -1, -3


# The offset of an instruction, and the probe's number or why there is none.
CopyEnd = tuple[int, int | str]


class ProbeError(KinstError):
    """A probe description matches nothing that can be probed.

    :param tag: what dtrace(1) calls it, where it does not say D_PDESC_ZERO.
    """

    def __init__(self, text: str, tag: str = "") -> None:
        super().__init__(text)
        self.tag = tag


@dataclass(frozen=True)
class Probe:
    """A probe as dtrace(1) names it: provider, module, function, name."""

    id: int
    provider: str
    module: str
    function: str
    name: str
    instruction: ProbedInstruction


class ProbeList(Sequence[Probe]):
    """All probes made, made into objects when they are looked at."""

    def __init__(self, breakpoints: "ProbeTable") -> None:
        self._of = breakpoints

    def __len__(self) -> int:
        return len(self._of.dispatcher)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if isinstance(number, slice):
            return [self._of.probe(i) for i in range(*number.indices(len(self)))]
        return self._of.probe(number if number >= 0 else number + len(self))


class ProbeTable:
    """All probes of a machine, kept by a native dispatcher."""

    def __init__(self, machine: Machine) -> None:
        self.arch, self.image, self.machine = machine.arch, machine.image, machine
        self.trap = trap_of(machine.guest, machine.arch.name)
        engine = machine.engine if isinstance(machine, UnicornMachine) else None
        self.dispatcher, self.templates = new_dispatcher(
            machine.arch, self.trap, machine.guest.traps.trap_frame, engine)
        self.probes = ProbeList(self)
        self.functions: list[Symbol] = []
        self._function_index: dict[tuple[str, int, str], int] = {}
        self._objects: dict[int, Probe] = {}
        self._text: tuple[int, bytes] | None = None
        self.enabled = False
        self._declared: list[StaticProbe] | None = None
        self._static: dict[int, int] = {}  # numbers of probes, by what is declared
        self._gates = False  # have they been added
        self._known_depths: dict[int, dict[int, int]] = {}  # by the address of a function
        self.programs: list[TracedProgram] = []
        self._of_programs: set[int] = set()  # indices of functions
        self._operations: dict[str, int] = {}  # numbers of operations, by the functions' names
        self._tables: dict[CallTable, int] = {}  # numbers of tables of system calls
        self.left_out: dict[str, str] = {}  # functions that a pattern matched, and why not
        self.not_followed: dict[str, list[str]] = {}  # by function: jumps that are no returns

    def code(self, function: Symbol) -> bytes:
        """A function as it is in memory, without our breakpoints: kernels patch their code at boot
        (ifuncs, CPU features).

        :raises ProbeError: when its pages are not mapped.
        :raises KinstError: when it is too large to be taken apart.
        """
        check_size(function)
        try:
            code = bytearray(self.machine.read(function.address, function.size))
        except MemoryAccessError as error:
            raise ProbeError(f"{function.name}: {error}") from None
        if self.enabled:
            for at in range(len(code)):
                original = self.dispatcher.displaced(function.address + at)
                if function.address + at in self.dispatcher:
                    code[at : at + len(original)] = original
        return bytes(code)

    def instructions(self, function: Symbol) -> list[ProbedInstruction]:
        """A function's instructions with their verdicts.

        :raises ProbeError: when its pages are not mapped.
        """
        return list(instructions(self.trap, self.code(function), function))

    def _function(self, function: Symbol) -> int:
        key = (function.name, function.address, function.module)
        index = self._function_index.get(key)
        if index is None:
            index = self._function_index[key] = len(self.functions)
            self.functions.append(function)
        return index

    def add(self, function: Symbol, kind: int, instruction: ProbedInstruction) -> int:
        """A probe on an instruction that is not refused; asked for again, the same one.

        :return: its number.
        """
        assert not isinstance(instruction.verdict, Refuse)
        return self._added(self.dispatcher.add(
            instruction.address, instruction.code, self._function(function), kind
        ), instruction.address)

    def _function_of_program(self, function: Symbol) -> int:
        index = self._function(function)
        self._of_programs.add(index)
        return index

    @property
    def kernel_functions(self) -> list[Symbol]:
        """Those with probes that are the kernel's."""
        return [function for index, function in enumerate(self.functions)
                if index not in self._of_programs]

    def _added(self, number: int, address: int) -> int:
        if number < 0:
            raise ProbeError(f"{self.image.symbols.where(address)}: it cannot be probed")
        return number

    @property
    def declared(self) -> list[StaticProbe]:
        """The kernel's static probes, and those of its system calls.

        :raises StaticProbeError: when they cannot be read.
        """
        if self._declared is None:
            guest = self.machine.guest
            self._declared = [probe for read in (guest.probes.declared, guest.probes.calls)
                              if read is not None for probe in read(self.image, self.machine)]
        return self._declared

    def add_static(self, index: int, types: Callable[[], Types] | None = None,
                   debug: Callable[[], DebugIndex] | None = None) -> int:
        """A static probe with all its tracepoints; asked for again, the same one.

        :param index: of ``declared``.
        :param types: gives the kernel's: a system call's probe needs them.
        :param debug: gives the debug data, for calls that go by the tracepoints.
        :return: its number.
        :raises ProbeError: when its code is not as it should be.
        """
        if index in self._static:
            return self._static[index]
        if self.declared[index].call is not None:
            return self._add_call(index, types)
        if not self._gates:
            for name, count in self.machine.guest.probes.gates.items():
                gate = self.image.symbols.find(name)
                if gate is None:
                    raise ProbeError(f"{self.image.path}: has no '{name}', which its tracepoints "
                                     "call")
                code = self._code_at(gate.address)
                if isinstance(self.trap.classify(code, gate.address)[1], Refuse):
                    raise ProbeError(f"{name}: no breakpoint can stand there")
                self.dispatcher.add_gate(gate.address, code, count)
            self._gates = True
        points = [(point.address, self._code_at(point.address), point.target)
                  for point in self.declared[index].tracepoints]
        wanted = self.machine.guest.probes.tracepoint
        for address, code, _target in points:
            if not code.startswith(wanted):
                raise ProbeError(
                    f"{self.image.symbols.where(address)}: a tracepoint is {wanted.hex()}, and "
                    f"there is {code[: len(wanted)].hex()}: another has patched it")
        number = self.dispatcher.add_static(index)
        try:
            for address, code, target in points:
                self.dispatcher.add_tracepoint(number, address, code, target)
                self._add_guard(self.declared[index], address)
            self._add_operation(self.declared[index], number, debug)
        except ValueError as error:  # no code that a compiler makes
            raise ProbeError(f"{self.declared[index].text}: {error}") from None
        self._static[index] = number
        return number

    def _add_operation(self, probe: StaticProbe, number: int,
                       debug: Callable[[], DebugIndex] | None) -> None:
        if (probe.provider, probe.module) != self.machine.guest.probes.operations or debug is None:
            return
        try:
            index = debug()
        except DebugDataError:
            return  # who makes the probe says so
        known = self._operations.get(probe.function)
        if known is None:
            try:
                calls = [(call.address, call.code, self._code_at(call.address + len(call.code)))
                         for call in operations.calls(self.trap, index, self.image,
                                                      probe.function, self.machine.read)]
            except (MemoryAccessError, DebugDataError) as error:
                raise ProbeError(f"{probe.text}: {error}") from None
            known = self.dispatcher.add_operation()
            for address, code, behind in calls:
                self.dispatcher.add_operation_call(known, address, code, False)
                self.dispatcher.add_operation_call(known, address + len(code), behind, True)
            self._operations[probe.function] = known
        self.dispatcher.set_operation(known, number, probe.name == "return")

    def _word(self, address: int) -> int:
        try:
            return self.machine.read_u64(address)
        except MemoryAccessError:
            return 0

    def _add_guard(self, probe: StaticProbe, address: int) -> None:
        name, guarded = self.machine.guest.probes.guard
        variable, function = self.image.symbols.find(name), self.image.symbols.function_at(address)
        if (probe.provider, probe.name) not in guarded or variable is None or function is None:
            return
        found = guards.guard(self.trap, self.instructions(function), variable.address, address,
                             self._word)
        if found is not None:
            self.dispatcher.add_guard(found.branch.address, found.branch.code, found.target,
                                      found.otherwise.address, found.otherwise.code)

    def _add_call(self, index: int, types: Callable[[], Types] | None) -> int:
        call = self.declared[index].call
        assert call is not None
        if types is None:
            raise ProbeError("system calls are probed by the kernel's types, which it lacks: "
                             "neither DWARF nor CTF is in it, or in a .debug file beside it")
        known = types()
        if not self._tables:
            self._add_call_sites(known)
        if call.table not in self._tables:
            self._tables[call.table] = self.dispatcher.add_call_table(
                call.table.base, call.table.size, call.table.count)
        widths = [] if call.returns else [system_calls.width(member) for member in
                                          system_calls.arguments(known, self.image, call.function)]
        number = self.dispatcher.add_static(index)
        try:
            self.dispatcher.add_call(self._tables[call.table], call.index, call.returns, number,
                                     widths)
        except ValueError as error:
            raise ProbeError(f"{self.declared[index].text}: {error}") from None
        self._static[index] = number
        return number

    def _add_call_sites(self, types: Types) -> None:
        guest = self.machine.guest
        members, calls = guest.programs.call_members, guest.programs.system_calls
        assert members is not None and calls is not None
        try:
            offsets = system_calls.offsets(types, members)
            found = [place for name in (calls.handler, *calls.others)
                     if (function := self.image.symbols.find(name)) is not None
                     for place in system_calls.places(
                         self.trap, self.instructions(function), offsets.arguments)]
        except system_calls.SystemCallError as error:
            raise ProbeError(str(error)) from None
        if not found:
            raise ProbeError(f"{self.image.path}: where {calls.handler} carries a system call out "
                             "is not found: its system calls cannot be probed")
        self.dispatcher.use_calls(
            self.trap.numbers[guest.threads.per_cpu], arguments=offsets.arguments,
            entry=offsets.entry, value=offsets.value, error=offsets.error, flags=offsets.flags,
            error_set=members.error_set)
        for pair in found:
            for place, returns in zip(pair, (False, True), strict=True):
                self.dispatcher.add_call_site(place.address, place.code, returns)

    def add_program(self, program: TracedProgram, types: Callable[[], Types] | None) -> int:
        """Have the dispatcher recognize a process that runs a program; asked again, the same one.

        :param types: gives the kernel's.
        :return: its number.
        :raises ProbeError: when it cannot be recognized.
        """
        if program in self.programs:
            return self.programs.index(program) + 1
        machine, members = self.machine, self.machine.guest.programs.members
        if not isinstance(machine, UnicornMachine) or members is None:
            raise ProbeError("probes in programs are for FreeBSD's kernels on our own machine")
        if types is None:
            raise ProbeError("probes in programs need the kernel's types, which it lacks: neither "
                             "DWARF nor CTF is in it, or in a .debug file beside it")
        word = thread_word(machine)
        try:
            found = offsets(types(), members)
        except MemberError as error:
            raise ProbeError(f"probes in programs: {error}") from None
        if word is None:
            raise ProbeError("probes in programs are for a kernel that runs some: this one has not "
                             "come so far")
        watch_threads(machine)
        self.dispatcher.use_programs(process=found.process, number=found.number, flags=found.flags,
                                     executed=members.executed, name=found.name)
        try:
            self.dispatcher.add_program(program.process, program.name.encode(), program.executed)
        except ValueError as error:
            raise ProbeError(str(error)) from None
        self.programs.append(program)
        return len(self.programs)

    def add_in_program(self, program: int, function: Symbol, kind: int, offset: int,
                       code: bytes) -> int:
        """A probe on an instruction of a program; asked for again, the same one.

        :param program: the number that ``add_program`` gave.
        :param code: the function's.
        :return: its number.
        :raises ProbeError: when it is none.
        """
        number = self.dispatcher.add_in_program(
            program, function.address + offset, code[offset : offset + LONGEST_CODE],
            self._function_of_program(function), kind)
        if number < 0:
            raise ProbeError(f"{function.name}+{offset:#x} of {self.programs[program - 1].name} is "
                             "no instruction")
        return number

    def add_all_in_program(self, program: int, function: Symbol, code: bytes) -> list[int]:
        """Probes on all instructions of a program's function.

        :return: their numbers.
        """
        return self.dispatcher.add_all_in_program(
            program, function.address, code, self._function_of_program(function),
            ProbeKind.PROGRAM_OFFSET)

    def program_of(self, number: int) -> TracedProgram | None:
        """What a probe is in; None: the kernel."""
        program = self.dispatcher.program(number)
        return self.programs[program - 1] if program else None

    def fires(self, number: int, state: CpuState) -> bool:
        """Whether a probe fires at its instruction: some do only where the guest leaves the
        function then."""
        bounds = self.dispatcher.leaves(number)
        if bounds is None:
            return True
        verdict = self.probe(number).instruction.verdict
        assert not isinstance(verdict, Refuse | Copy | Rewrite)
        return not bounds[0] < verdict.next_pc(state) < bounds[1]

    def at_copy(self, number: int, state: ReadableState) -> tuple[int, int] | None:
        """What a probe of an inline copy is at its instruction: (the copy, its role); None for a
        probe of no copy, and where control stays inside.

        The roles are those of ``kinst.probes.inline_copies``; 0: control stays inside.
        """
        found = self.dispatcher.copy_of(number)
        if found is None:
            return None
        copy, role, _silent = found
        if role == WAY_OUT and not goes_out(self.trap, self.dispatcher.ranges_of(copy),
                                            self.probe(number).instruction, state):
            role = 0
        return copy, role

    def addresses(self, number: int) -> list[int]:
        """Where a probe fires: of a static one its tracepoints."""
        static = self.static(number)
        return ([self.dispatcher.probe(number)[0]] if static is None
                else [point.address for point in static.tracepoints])

    def static(self, number: int) -> StaticProbe | None:
        """What is declared of a probe; None: it is no static one."""
        _address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        return self.declared[index] if kind == ProbeKind.STATIC else None

    def _code_at(self, address: int) -> bytes:
        """:raises ProbeError: when it is not mapped."""
        try:
            return self.machine.read(address, LONGEST_CODE)
        except MemoryAccessError as error:
            raise ProbeError(f"{self.image.symbols.where(address)}: {error}") from None

    def add_boundaries(self, function: Symbol, entry: bool, returns: bool) -> list[int]:
        """Probes where a function is entered, where it is left, or both.

        :return: their numbers.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        return self.dispatcher.add_boundaries(
            function.address, code, start, function.size, self._function(function),
            ProbeKind.ENTRY if entry else None, ProbeKind.RETURN if returns else None,
            partial(self._strays, function, code, start))

    def _strays(self, function: Symbol, code: bytes, start: int, at: int) -> bool:
        """Whether the jump at an offset leads into the middle of another function, or into another
        part of this one: no function that will return to this one's caller."""
        target = self._jump_target(function, code[start : start + function.size], at)
        if target is None or target in self._starts:
            return False
        where = self.image.symbols.where(target)
        self.not_followed.setdefault(function.name, []).append(
            f"it jumps from {function.name}+{at:#x} to {where}, where no function begins")
        return True

    def _jump_target(self, function: Symbol, code: bytes, at: int) -> int | None:
        """Where the jump at an offset leads; None: a register or memory says it."""
        verdict = self.trap.classify(code[at : at + LONGEST_CODE], function.address + at)[1]
        if isinstance(verdict, ConditionalJump):
            return verdict.target
        target = self.trap.jump_target(None, verdict)
        if target is None and at >= FAR_JUMP:  # the address may be in two instructions
            before = self.trap.classify(code[at - FAR_JUMP : at], function.address + at - FAR_JUMP)
            target = self.trap.jump_target(before[1], verdict)
        return target

    @functools.cached_property
    def _starts(self) -> frozenset[int]:
        """Where functions begin that may be jumped to in place of a return: not their cold parts,
        which compilers give names like ``f.cold``."""
        return beginnings(self.image)

    def add_all(self, function: Symbol) -> list[int]:
        """kinst probes on every instruction of a function that is not refused.

        :return: their numbers.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        return self.dispatcher.add_all(
            function.address, code, start, function.size, self._function(function), ProbeKind.OFFSET
        )

    def add_copy_ends(self, function: Symbol, copies: Sequence[tuple[int, int | None, bool]],
                      entry: bool, returns: bool) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        """kinst probes where inline copies with code in a function are entered and left.

        :param copies: (number that ``dispatcher.add_copy`` gave, offset of its begin or None where
            that is in another function, whether it is entered there alone).
        :param entry: whether the entries are wanted; otherwise their probes only follow the copies.
            So ``returns``.
        :return: for each copy where it is entered, and the instructions that may lead out of it.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        found = self.dispatcher.add_copy_ends(
            function.address, code, start, function.size, self._function(function),
            ProbeKind.OFFSET, copies, entry, returns, self.trap.is_padding,
            is_cold(function.name))

        if any(len(entered) > 1 for entered, _left in found):
            depths = self._depths(function)
            for entered, _left in found:
                for at, number in entered if len(entered) > 1 else ():
                    if number >= 0:
                        self.dispatcher.lies_lower(number, depths.get(at, 0))

        def end(at: int, number: int) -> CopyEnd:
            return at, number if number >= 0 else self._refusal(function, at, number)

        return [([end(*one) for one in entered], [end(*one) for one in left])
                for entered, left in found]

    def _depths(self, function: Symbol) -> dict[int, int]:
        """How far the stack pointer is lowered at a function's instructions, by offset."""
        if function.address not in self._known_depths:
            code, start = self._around(function)
            self._known_depths[function.address] = stack_depths(
                self.arch, code[start : start + function.size],
                self.dispatcher.ways(function.address, code, start, function.size))
        return self._known_depths[function.address]

    def _refusal(self, function: Symbol, at: int, number: int) -> str:
        """Why there is no probe at an offset."""
        if number == IN_EXCLUSIVE:
            return f"it {EXCLUSIVE}"
        for i in self.instructions(function) if number == NO_INSTRUCTION else ():
            if i.offset == at and isinstance(i.verdict, Refuse):
                return f"it {i.verdict.reason}"  # data
        verdict = self.trap.classify(self.code(function)[at : at + 16], function.address + at)[1]
        return (f"it {verdict.reason}" if number != NO_INSTRUCTION and isinstance(verdict, Refuse)
                else f"it is no instruction of {function.name}")

    def boundaries(self, function: Symbol) -> tuple[int, list[int], bool, list[int]]:
        """Where a function is entered (an offset, or -1) and left, whether it has a frame, and
        where it is left if a condition or an address says so."""
        code, start = self._around(function)
        return self.dispatcher.boundaries(function.address, code, start, function.size)

    def _around(self, function: Symbol) -> tuple[bytes, int]:
        """Memory that holds a function, and where in it."""
        if self.enabled:
            return self.code(function), 0
        if self._text is not None:
            base, text = self._text
            if base <= function.address and function.address + function.size <= base + len(text):
                return text, function.address - base
        return self.code(function), 0

    def read_text(self) -> None:
        """Read all code at once, for probes on much of the kernel; forgotten when they are enabled.
        """
        for segment in self.machine.image.segments:
            if segment.executable:
                size = min(segment.memory_size, len(segment.data))
                try:
                    self._text = segment.virtual, self.machine.read(segment.virtual, size)
                except MemoryAccessError:
                    continue  # not all of it is mapped: functions are read one by one
                return

    def forget_text(self) -> None:
        self._text = None

    def names(self, number: int) -> tuple[str, str, str, str]:
        """Provider, module, function and name of the probe of that number, from 0."""
        address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        if kind == ProbeKind.STATIC:
            static = self.declared[index]
            return static.provider, static.module, static.function, static.name
        function = self.functions[index]
        provider, name = KINDS[kind]
        program = self.program_of(number)
        if program is not None:
            return (f"{provider}{program.process}", program.name, function.name,
                    name or f"{address - function.address:x}")
        return (provider, function.module_name, function.name,
                name or str(address - function.address))

    def function(self, number: int) -> Symbol | None:
        """The function that a probe lies in; None for a static probe."""
        _address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        return None if kind == ProbeKind.STATIC else self.functions[index]

    def offset(self, number: int) -> int:
        """The place of that probe in its function."""
        address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        if kind == ProbeKind.STATIC:
            return 0
        return address - self.functions[index].address

    def probe(self, number: int) -> Probe:
        """The probe of that number, from 0; its id is one more, as dtrace counts."""
        known = self._objects.get(number)
        if known is None:
            address, code, _index, kind, _count, _removed = self.dispatcher.probe(number)
            if kind == ProbeKind.STATIC:
                address = next(iter(self.addresses(number)), 0)
                code = self.dispatcher.displaced(address)
            verdict = self.trap.classify(code, address)[1] if code else Refuse("is nowhere")
            known = self._objects[number] = Probe(
                number + 1, *self.names(number),
                ProbedInstruction(self.offset(number), address, code, verdict),
            )
        return known

    def remove_all(self) -> None:
        """Forget all probes; they must not be enabled."""
        assert not self.enabled
        self.dispatcher.clear()
        self._objects.clear()
        self.functions.clear()
        self._static.clear()
        self.programs.clear()
        self._of_programs.clear()
        self._tables.clear()
        self._operations.clear()
        self._gates = False
        self._function_index.clear()
