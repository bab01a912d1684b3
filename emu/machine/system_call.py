"""System calls, made by a program that stands still right behind one of its own: their numbers and
arguments take the place of what it had in its registers, and its registers come back."""

from collections.abc import Mapping, Sequence

from emu.elf.symbols import Symbol
from emu.guest.guest import SystemCalls
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT, SMALL, Caller
from emu.machine.machine import Machine, StopReason, Until

MAX_CALLS, LONGEST = 1024, 64  # numbers looked at; bytes of a name, its end included
POINTER = 8


def calls_of(machine: Machine) -> SystemCalls:
    """:raises KinstError: for a kernel that runs no programs."""
    calls = machine.guest.programs.system_calls
    if calls is None or machine.image.symbols.find(calls.names) is None:
        raise KinstError(f"{machine.image.path}: a kernel without system calls")
    return calls


def behind_call(machine: Machine) -> bool:
    """Whether a program is about to execute what follows a system call of its own."""
    code = calls_of(machine).instruction
    return not machine.pc >> 63 and machine.read(machine.pc - len(code), len(code)) == code


def numbers(machine: Machine) -> dict[str, int]:
    """The kernel's system calls: name -> number."""
    found: dict[str, int] = {}
    symbol = machine.symbol(calls_of(machine).names)
    count = min(symbol.size // POINTER, MAX_CALLS)
    for number in range(count):
        at = int.from_bytes(machine.read(symbol.address + POINTER * number, POINTER), "little")
        text, end, _more = machine.read(at, LONGEST).partition(b"\0")
        if end and text.decode("ascii", "replace").isidentifier():
            found.setdefault(text.decode(), number)
    return found


class SystemCaller(Caller):
    """Makes system calls, named by the kernel's functions for them (``sys_read``).

    What fails gives the error's number, negative.  Data for them lies below the program's stack.

    :param numbers: of the kernel's calls.
    :raises KinstError: when the machine does not stand in a program, behind a system call.
    """

    def __init__(
        self, machine: Machine, numbers: Mapping[str, int], limit: int = DEFAULT_LIMIT
    ) -> None:
        super().__init__(machine, limit)
        self._calls, self._numbers = calls_of(machine), numbers
        if not behind_call(machine):
            raise KinstError("the machine does not stand in a program, behind a system call")
        self._back = machine.pc

    def _allocate(self, size: int) -> int:
        raise KinstError(f"{size} bytes of arguments: a system call has {SMALL}, in all")

    def call_symbol(self, function: Symbol, arguments: Sequence[int]) -> int:
        """Make the call that a kernel's function is for, and give what the program gets.

        :raises CallError: when it panics, or does not return to the program.
        """
        m, calls = self.machine, self._calls
        number = self._numbers.get(function.name.removeprefix(calls.prefix))
        if number is None or not function.name.startswith(calls.prefix):
            raise KinstError(f"{function.name}: no system call; theirs begin with {calls.prefix}")
        if len(arguments) > len(calls.arguments):
            raise KinstError(f"{function.name}: at most {len(calls.arguments)} arguments")
        saved, seen, sp = m.registers(), len(m.console.text), m.sp
        m.write_register(calls.number, number)
        for register, value in zip(calls.arguments, arguments, strict=False):
            m.write_register(register, value)
        m.pc = self._back - len(calls.instruction)
        limit = m.instructions + self.limit if m.counts else None
        while True:
            stop = m.run(Until(addresses=[self._back], instructions=limit))
            if stop.reason is not StopReason.ADDRESS or stop.pc != self._back:
                self._failed(function.name, stop, seen)
            if m.sp == sp:
                break  # another one's has another
        value = m.read_register(calls.result)
        register, bits = calls.failed
        failed = m.read_register(register) & bits
        for name, content in saved.items():
            m.write_register(name, content)
        return -value & (1 << 64) - 1 if failed else value
