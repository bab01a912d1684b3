"""System calls made on behalf of a stopped program.

The program is stopped right after one of its own system calls.  The number and arguments of the new
call replace its registers, which are restored afterwards.
"""

from collections.abc import Mapping, Sequence

from emu.elf.symbols import Symbol
from emu.guest.guest import SystemCalls
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT, SMALL, Caller
from emu.machine.machine import Machine, StopReason, Until

MAX_CALLS, LONGEST = 1024, 64  # maximum number of table entries; maximum size in bytes of a name
POINTER = 8


def calls_of(machine: Machine) -> SystemCalls:
    """Return the guest's system call conventions.

    :raises KinstError: if the kernel cannot run programs.
    """
    calls = machine.guest.programs.system_calls
    if calls is None or machine.image.symbols.find(calls.names) is None:
        raise KinstError(f"{machine.image.path}: this kernel has no system calls")
    return calls


def behind_call(machine: Machine) -> bool:
    """Return whether a program will next execute the instruction after one of its system calls."""
    code = calls_of(machine).instruction
    return not machine.pc >> 63 and machine.read(machine.pc - len(code), len(code)) == code


def numbers(machine: Machine) -> dict[str, int]:
    """Return the kernel's system call numbers, keyed by name."""
    by_name: dict[str, int] = {}
    symbol = machine.symbol(calls_of(machine).names)
    count = min(symbol.size // POINTER, MAX_CALLS)
    for number in range(count):
        address = int.from_bytes(machine.read(symbol.address + POINTER * number, POINTER), "little")
        text, end, _more = machine.read(address, LONGEST).partition(b"\0")
        if end and text.decode("ascii", "replace").isidentifier():
            by_name.setdefault(text.decode(), number)
    return by_name


class SystemCaller(Caller):
    """Caller of system calls, each named by the kernel function that implements it (``sys_read``).

    A failed call returns its negative error number.  Arguments in memory are placed below the
    program's stack pointer.

    :param numbers: system call numbers by name.
    :raises KinstError: if the machine is not stopped in a program right after a system call.
    """

    def __init__(
        self, machine: Machine, numbers: Mapping[str, int], limit: int = DEFAULT_LIMIT
    ) -> None:
        super().__init__(machine, limit)
        self._calls, self._numbers = calls_of(machine), numbers
        if not behind_call(machine):
            raise KinstError("cannot make a system call: the machine must be stopped in a program, "
                             "right after a system call")
        self._back = machine.pc

    def _allocate(self, size: int) -> int:
        raise KinstError(f"the arguments have {size} bytes; a system call takes at most {SMALL}")

    def call_symbol(self, function: Symbol, arguments: Sequence[int]) -> int:
        """Make the system call that a kernel function implements, and return its result.

        :raises CallError: if the guest panics or does not return to the program.
        """
        m, calls = self.machine, self._calls
        number = self._numbers.get(function.name.removeprefix(calls.prefix))
        if number is None or not function.name.startswith(calls.prefix):
            raise KinstError(f"{function.name} is not a system call: use a name that begins with "
                             f"{calls.prefix}")
        if len(arguments) > len(calls.arguments):
            raise KinstError(f"{function.name}: a system call takes at most {len(calls.arguments)} "
                             "arguments")
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
                break  # another thread at this address has a different stack pointer
        value = m.read_register(calls.result)
        register, bits = calls.failed
        failed = m.read_register(register) & bits
        for name, content in saved.items():
            m.write_register(name, content)
        return -value & (1 << 64) - 1 if failed else value
