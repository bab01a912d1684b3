"""Probes in programs, while a process runs them."""

from collections.abc import Callable

from dwarf.members import MemberError
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.machine.machine import Machine
from emu.machine.running_thread import thread_word
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.running_thread import watch_threads
from kinst.probes.declared_probes import DeclaredProbes
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import LONGEST_CODE, ProbeError
from kinst.probes.traced_program import TracedProgram, offsets


class ProgramProbes(DeclaredProbes):
    """Those of a machine, beside the probes that its kernel declares."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.programs: list[TracedProgram] = []
        self._of_programs: set[int] = set()  # indices of functions

    def remove_all(self) -> None:
        super().remove_all()
        self.programs.clear()
        self._of_programs.clear()

    def _function_of_program(self, function: Symbol) -> int:
        index = self._function(function)
        self._of_programs.add(index)
        return index

    @property
    def kernel_functions(self) -> list[Symbol]:
        """Those with probes that are the kernel's."""
        return [function for index, function in enumerate(self.functions)
                if index not in self._of_programs]

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
