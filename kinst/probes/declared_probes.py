"""Probes that the kernel declares itself: static ones, and those of its system calls."""

from collections.abc import Callable

from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from dwarf.types import Types
from emu.guest.static_probe import CallTable, StaticProbe
from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.probes import guards, operations, system_calls
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import ProbedCode, ProbeError
from kinst.relocation.verdict import Refuse


class DeclaredProbes(ProbedCode):
    """Those of a machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._declared: list[StaticProbe] | None = None
        self._static: dict[int, int] = {}  # numbers of probes, by what is declared
        self._gates = False  # have they been added
        self._operations: dict[str, int] = {}  # numbers of operations, by the functions' names
        self._tables: dict[CallTable, int] = {}  # numbers of tables of system calls

    def remove_all(self) -> None:
        super().remove_all()
        self._static.clear()
        self._tables.clear()
        self._operations.clear()
        self._gates = False

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
                if isinstance(self.trap.instructions.classify(code, gate.address)[1], Refuse):
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

    def static(self, number: int) -> StaticProbe | None:
        """What is declared of a probe; None: it is no static one."""
        _address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        return self.declared[index] if kind == ProbeKind.STATIC else None
