"""Probes that the kernel declares itself: static probes and system call probes."""

from collections.abc import Callable

from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.guest.guest import AllocationProbes
from emu.guest.static_probe import CallTable, StaticProbe, StaticProbeError
from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.probes import allocations, guards, operations, system_calls
from kinst.probes.kinds import ProbeKind
from kinst.probes.lock_probes import MachineLocks
from kinst.probes.probed_code import ProbedCode, ProbeError
from kinst.relocation.template import NO_REGISTER
from kinst.relocation.verdict import Refuse

MASK = (1 << 64) - 1
NEED_DWARF = "need the kernel's DWARF debug data"


class DeclaredProbes(ProbedCode):
    """The static probes and system call probes of a machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._declared: list[StaticProbe] | None = None
        self.unreadable: list[str] = []  # why declarations are missing from ``declared``
        self._read_at = 0  # instruction count at which ``declared`` was read
        self._static: dict[int, int] = {}  # index in ``declared`` -> ID of the probe
        self._listed: dict[int, int] = {}  # the same, for probes that cannot fire
        self._gates = False  # whether the gates (functions that tracepoints call) were added
        # why the sites of allocations cannot be added; empty: they were added, None: not tried yet
        self._allocations: str | None = None
        self._operations: dict[str, int] = {}  # function name -> index of the vnode operation
        self._locks = MachineLocks(self)
        # system call table -> the dispatcher's index of the table
        self._tables: dict[CallTable, int] = {}

    def remove_all(self) -> None:
        """Forget all probes; they must not be enabled."""
        super().remove_all()
        self._static.clear()
        self._listed.clear()
        self._tables.clear()
        self._operations.clear()
        self._locks.forget()
        self._gates, self._allocations = False, None

    @property
    def declared(self) -> list[StaticProbe]:
        """The static probes and system call probes that the kernel declares.

        If those of one kind cannot be read, only the others are returned: see ``unreadable``.  They
        are read again after the guest has run, because the kernel may not have been ready, unless
        static probes were added: these refer to the indexes of the list.
        """
        ran = self.machine.instructions
        if self._declared is None or (
                self.unreadable and not self._static and ran != self._read_at):
            probes, found, unreadable = self.machine.guest.probes, list[StaticProbe](), list[str]()
            for read in (probes.declared, probes.calls,
                         None if probes.allocations is None else probes.allocations.declared):
                try:
                    found += [] if read is None else read(self.image, self.machine)
                except StaticProbeError as error:
                    unreadable.append(str(error))
            self._declared, self.unreadable, self._read_at = found, unreadable, ran
        return self._declared

    def add_static(self, index: int, types: Callable[[], Types] | None = None,
                   debug: Callable[[], DebugIndex] | None = None) -> int:
        """Add a static probe with all its tracepoints, unless the probe exists; return its number.

        :param index: its index in ``declared``.
        :param types: returns the kernel's types, which system call probes and probes of locks need.
        :param debug: returns the debug data, to find calls that bypass the tracepoints.
        :raises ProbeError: when the kernel's code is not as expected, or the types are missing.
        """
        if index in self._static:
            return self._static[index]
        if self.declared[index].call is not None:
            return self._add_call(index, types)
        if self.declared[index].allocation is not None:
            return self._add_allocation(index, types, debug)
        if not self._gates:
            for name, count in self.machine.guest.probes.gates.items():
                gate = self.image.symbols.find(name)
                if gate is None:
                    raise ProbeError(f"{self.image.path}: the tracepoints call '{name}', but this "
                                     "symbol was not found")
                code = self._code_at(gate.address)
                verdict = self.trap.instructions.classify(code, gate.address)[1]
                if isinstance(verdict, Refuse):
                    raise ProbeError(f"{self.image.path}: static probes are not available: no "
                                     "breakpoint can be set on the first instruction of "
                                     f"'{name}', which {verdict.reason}")
                self.dispatcher.add_gate(gate.address, code, count)
            self._gates = True
        probe = self.declared[index]
        is_lock = self._locks.knows(probe)
        swaps = self._locks.swaps(probe, self.declared, types) if is_lock else []
        replaced = self._locks.replaced(probe, swaps)
        points = [(point.address, self._code_at(point.address), point.target)
                  for point in probe.tracepoints if point.address not in replaced]
        wanted = self.machine.guest.probes.tracepoint
        for address, code, _target in points:
            if not code.startswith(wanted):
                raise ProbeError(
                    f"{self.image.symbols.where(address)}: the tracepoint's code has been patched: "
                    f"it is {code[: len(wanted)].hex()} instead of {wanted.hex()}")
        number = self.dispatcher.add_static(index)
        try:
            for address, code, target in points:
                self.dispatcher.add_tracepoint(number, address, code, target)
                self._add_guard(probe, address)
            self._add_operation(probe, number, debug)
            for swap in swaps:
                self._locks.add(number, swap)
        except ValueError as error:  # the code is not what a compiler generates
            raise ProbeError(f"{probe.text}: {error}") from None
        self._static[index] = number
        return number

    def list_static(self, index: int) -> int:
        """Return the number of a static probe that is only listed, and need not be able to fire."""
        known = self._static.get(index, self._listed.get(index))
        if known is None:
            known = self._listed[index] = self.dispatcher.add_static(index)
        return known

    def incomplete(self, index: int) -> list[str]:
        """Return why a static probe, which was added, does not fire for some of its events."""
        return self._locks.reports(self.declared[index])

    def is_bypassed(self, probe: StaticProbe) -> bool:
        """Return whether a static probe also fires where the kernel passes no tracepoint."""
        operations = self.machine.guest.probes.operations
        return (probe.provider, probe.module) == operations or self._locks.knows(probe)

    def _add_operation(self, probe: StaticProbe, number: int,
                       debug: Callable[[], DebugIndex] | None) -> None:
        if (probe.provider, probe.module) != self.machine.guest.probes.operations or debug is None:
            return
        try:
            index = debug()
        except DebugDataError:
            return  # the caller reports missing debug data
        operation = self._operations.get(probe.function)
        if operation is None:
            try:
                calls = [(call.address, call.code, self._code_at(call.address + len(call.code)))
                         for call in operations.calls(self.trap, index, self.image,
                                                      probe.function, self.machine.read)]
            except (MemoryAccessError, DebugDataError) as error:
                raise ProbeError(f"{probe.text}: {error}") from None
            descriptor = self.image.symbols.find(f"{probe.function}{operations.DESCRIPTOR}")
            operation = self.dispatcher.add_operation(
                0 if descriptor is None else descriptor.address)
            for address, code, following in calls:
                self.dispatcher.add_operation_call(operation, address, code, False)
                self.dispatcher.add_operation_call(operation, address + len(code), following, True)
            self._operations[probe.function] = operation
        self.dispatcher.set_operation(operation, number, probe.name == "return")

    def _add_guard(self, probe: StaticProbe, address: int) -> None:
        name, guarded = self.machine.guest.probes.guard
        variable, function = self.image.symbols.find(name), self.image.symbols.function_at(address)
        if (probe.provider, probe.name) not in guarded or variable is None:
            return
        if function is None:
            raise ProbeError(f"the function around the tracepoint at {address:#x} is unknown "
                             f"({self.image.symbols.stripped or 'no symbol contains it'}), so the "
                             "code that skips the tracepoint cannot be found")
        guard = guards.guard(self.trap, self.instructions(function), variable.address, address,
                             self.word)
        if guard is not None:
            self.dispatcher.add_guard(guard.branch.address, guard.branch.code, guard.target,
                                      guard.otherwise.address, guard.otherwise.code)

    def _add_allocation(self, index: int, types: Callable[[], Types] | None,
                        debug: Callable[[], DebugIndex] | None) -> int:
        probe, probes = self.declared[index], self.machine.guest.probes.allocations
        assert probe.allocation is not None and probes is not None
        if self._allocations is None:
            self._allocations = self._add_allocation_sites(probes, types, debug)
        if self._allocations:
            raise ProbeError(f"the probes of {probe.provider} {self._allocations}")
        number = self._static[index] = self.dispatcher.add_static(index)
        self.dispatcher.add_allocation(
            probe.allocation.kind, probes.frees[probe.allocation.function], number)
        return number

    def _add_allocation_sites(self, probes: AllocationProbes, types: Callable[[], Types] | None,
                              debug: Callable[[], DebugIndex] | None) -> str:
        """Add the sites of allocations; return why that is not possible, or an empty string."""
        if types is None or debug is None:
            return NEED_DWARF
        try:
            self._add_sites(probes, types(), debug())
        except DebugDataError:
            return NEED_DWARF
        except (MemberError, ProbeError, ValueError) as error:
            return f"cannot be created: {error}"
        return ""

    def _add_sites(self, probes: AllocationProbes, types: Types, index: DebugIndex) -> None:
        names = self.templates.names

        def place(where: str | int) -> tuple[int, int]:
            return (NO_REGISTER, where & MASK) if isinstance(where, int) else (
                names.index(where), 0)

        self.dispatcher.use_allocations(
            self.trap.numbers[self.machine.guest.threads.per_cpu],
            of_cpu=offset_of(types, *probes.of_cpu), internal=offset_of(types, *probes.internal),
            statistics=offset_of(types, *probes.statistics))
        for site in allocations.sites(self, probes, index, types):
            size, zone = place(site.size), place(site.zone)
            self.dispatcher.add_allocation_site(
                site.branch.address, site.branch.code, site.frees, kind=names.index(site.kind),
                size=size[0], size_value=size[1], zone=zone[0], zone_value=zone[1])

    def _add_call(self, index: int, types: Callable[[], Types] | None) -> int:
        call = self.declared[index].call
        assert call is not None
        if types is None:
            raise ProbeError("system call probes need the kernel's types, but neither the kernel "
                             "nor a .debug file next to it contains DWARF or CTF")
        ktypes = types()
        if not self._tables:
            self._add_call_sites(ktypes)
        if call.table not in self._tables:
            self._tables[call.table] = self.dispatcher.add_call_table(
                call.table.base, call.table.size, call.table.count)
        if not call.returns and not system_calls.is_known(ktypes, self.image, call.function):
            raise ProbeError(f"the arguments of {call.function} are unknown, because the kernel's "
                             f"{ktypes.format} does not describe this function")
        widths = [] if call.returns else [system_calls.width(member) for member in
                                          system_calls.arguments(ktypes, self.image, call.function)]
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
            call_sites = [place for name in (calls.handler, *calls.others)
                     if (function := self.image.symbols.find(name)) is not None
                     for place in system_calls.places(
                         self.trap, self.instructions(function), offsets.arguments)]
        except system_calls.SystemCallError as error:
            raise ProbeError(str(error)) from None
        if not call_sites:
            raise ProbeError(f"{self.image.path}: system calls cannot be probed, because "
                             f"{calls.handler} does not call the functions of system calls")
        self.dispatcher.use_calls(
            self.trap.numbers[guest.threads.per_cpu], arguments=offsets.arguments,
            entry=offsets.entry, value=offsets.value, error=offsets.error, flags=offsets.flags,
            error_set=members.error_set)
        for pair in call_sites:
            for place, returns in zip(pair, (False, True), strict=True):
                self.dispatcher.add_call_site(place.address, place.code, returns)

    def static(self, number: int) -> StaticProbe | None:
        """Return the declaration of a static probe, or None for any other probe."""
        _address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        return self.declared[index] if kind == ProbeKind.STATIC else None
