"""Probes in user programs, for the processes that run them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dwarf.members import MemberError
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.guest.static_probe import StaticProbe
from emu.machine.machine import Machine
from emu.machine.running_thread import thread_word
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.running_thread import watch_threads
from kinst.code.convention import CONVENTIONS, WORD, word
from kinst.probes.declared_probes import DeclaredProbes
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import LONGEST_CODE, ProbeError
from kinst.probes.traced_program import TracedProgram, offsets

MOST_ARGUMENTS = 10  # maximum number of arguments that a firing has


class ProgramProbes(DeclaredProbes):
    """Probes in programs, in addition to the probes that the kernel declares."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.programs: list[TracedProgram] = []
        self._of_files: list[StaticProbe] = []  # probes that programs declare
        # (number of a program, probe) -> the probe's number
        self._declared_there: dict[tuple[int, StaticProbe], int] = {}
        # Whether programs that ask for an enabled probe get the answer that it is enabled.  In a
        # replay, this would lead to another run.
        self.answers = True
        self._of_programs: set[int] = set()  # indices of the functions that belong to programs

    def remove_all(self) -> None:
        """Forget all probes; they must not be enabled."""
        super().remove_all()
        self.programs.clear()
        self._of_programs.clear()
        self._of_files.clear()
        self._declared_there.clear()

    def _function_of_program(self, function: Symbol) -> int:
        index = self._function(function)
        self._of_programs.add(index)
        return index

    @property
    def kernel_functions(self) -> list[Symbol]:
        """The functions of the kernel that have probes."""
        return [function for index, function in enumerate(self.functions)
                if index not in self._of_programs]

    def add_program(self, program: TracedProgram, types: Callable[[], Types] | None) -> int:
        """Let the dispatcher recognize a process that runs a program; return the program's number.

        Programs with the same process and name have the same number, because the process cannot be
        seen to run one or the other.

        :param types: returns the kernel's types.
        :raises ProbeError: when the process cannot be recognized.
        """
        if program in self.programs:
            return self.programs.index(program) + 1
        machine, members = self.machine, self.machine.guest.programs.members
        if not isinstance(machine, UnicornMachine) or members is None:
            raise ProbeError("probes in programs require a FreeBSD kernel on the Unicorn machine")
        if types is None:
            raise ProbeError("probes in programs need the kernel's types, but neither the kernel "
                             "nor a .debug file next to it contains DWARF or CTF")
        word = thread_word(machine)
        try:
            found = offsets(types(), members)
        except MemberError as error:
            raise ProbeError(f"probes in programs: {error}") from None
        if word is None:
            raise ProbeError("probes in programs: the kernel has not set up its per-CPU data "
                             "yet; let the boot continue first")
        watch_threads(machine)
        self.dispatcher.use_programs(process=found.process, number=found.number, flags=found.flags,
                                     executed=members.executed, name=found.name,
                                     parent=found.parent, space=found.space)
        try:
            number = self.dispatcher.add_program(
                program.process, program.name.encode(), program.executed, program.several)
        except ValueError as error:
            raise ProbeError(str(error)) from None
        if number > len(self.programs):
            self.programs.append(program)
        else:
            before = self.programs[number - 1]
            self.programs[number - 1] = replace(
                before, objects=tuple(dict.fromkeys((*before.objects, *program.objects))))
        return number

    def add_in_program(self, program: int, function: Symbol, kind: int, offset: int,
                       code: bytes) -> int:
        """Add a probe to an instruction of a program, unless the probe exists; return its number.

        :param program: the program's number, from ``add_program``.
        :param code: the function's code.
        :raises ProbeError: when no instruction starts at the offset.
        """
        number = self.dispatcher.add_in_program(
            program, function.address + offset, code[offset : offset + LONGEST_CODE],
            self._function_of_program(function), kind)
        if number < 0:
            raise ProbeError(f"{function.name}+{offset:#x} of {self.programs[program - 1].name} is "
                             "not an instruction")
        return number

    def add_all_in_program(self, program: int, function: Symbol, code: bytes) -> list[int]:
        """Add a probe to every instruction of a program's function; return the probes' numbers."""
        return self.dispatcher.add_all_in_program(
            program, function.address, code, self._function_of_program(function),
            ProbeKind.PROGRAM_OFFSET)

    def program_of(self, number: int) -> TracedProgram | None:
        """Return the program that contains a probe, or None for a probe in the kernel."""
        program = self.dispatcher.program(number)
        return self.programs[program - 1] if program else None

    def add_declared(self, program: int, probe: StaticProbe, mapping: Sequence[int],
                     fires: Sequence[tuple[int, bytes]], asks: Sequence[tuple[int, bytes]]) -> int:
        """Add a probe that a program declares, unless the probe exists; return its number.

        :param program: the program's number, from ``add_program``.
        :param mapping: for each argument, the index of the C argument that it comes from.  If it is
            its own, the words that a call with more arguments would pass are arguments, too.
        :param fires: address and code of each instruction at which it fires.
        :param asks: the same where the program asks whether the probe is enabled.
        :raises ProbeError: when one of the addresses has no instruction.
        """
        key = program, probe
        number = self._declared_there.get(key)
        dispatcher = self.dispatcher
        try:
            if number is None:
                shown = range(MOST_ARGUMENTS) if mapping == tuple(
                    range(len(mapping))) else mapping[:MOST_ARGUMENTS]
                number = dispatcher.add_static_in_program(
                    len(self._of_files), [self._source(one) for one in shown], len(mapping))
                self._of_files.append(probe)
                self._declared_there[key] = number
            for sites, asked in ((fires, False), (asks if self.answers else (), True)):
                for address, code in sites:
                    dispatcher.add_static_site(number, program, address, code, asked)
        except ValueError as error:
            raise ProbeError(f"{probe.text}: {error}") from None
        return number

    def _source(self, number: int) -> tuple[bool, int]:
        """Return where a call passes its argument ``number``; see ``add_static_in_program``."""
        passed = word(CONVENTIONS[self.arch.name], number)
        return ((True, self.templates.names.index(passed.register)) if passed.register
                else (False, passed.offset // WORD))

    def static(self, number: int) -> StaticProbe | None:
        _address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        return (self._of_files[index] if kind == ProbeKind.PROGRAM_STATIC
                else super().static(number))
