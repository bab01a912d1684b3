"""Host functions that compiled D code calls, for subroutines and for some variables."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from dtrace.bpf._runtime import Runtime, RuntimeFault
from dtrace.bpf.interpreter import signed
from dtrace.bpf.layout import ENTERED, IN_PROGRAM, REGS, UREGS, Fault, Helper
from dtrace.d.compile.actions import ON_HOST
from dtrace.d.compile.code import ABSENT
from dtrace.d.language.identifiers import HOSTED, SUBROUTINES
from dtrace.run import subroutines
from dtrace.run.locks import LockState

Values = dict[str, Callable[[], int | bytes | None]]
MAX_MEMSTR = 4096
MAX_ANCESTORS = 1024
# D subroutine -> function that computes its result from a lock's state and a thread
LOCKS: dict[str, Callable[[LockState, int], int]] = {
    "mutex_owned": lambda lock, _thread: lock.held,
    "mutex_owner": lambda lock, _thread: lock.owner,
    "mutex_type_adaptive": lambda lock, _thread: lock.sleeps,
    "mutex_type_spin": lambda lock, _thread: lock.spins,
    **dict.fromkeys(("rw_read_held", "sx_shared_held"),
                    lambda lock, _thread: lock.held and not lock.owner),
    # The first two subroutines accept any exclusive owner, the next two only the current thread.
    **dict.fromkeys(("rw_write_held", "sx_exclusive_held"), lambda lock, _thread: lock.owner != 0),
    **dict.fromkeys(("rw_iswriter", "sx_isexclusive"), lambda lock, thread: lock.owner == thread),
}
REGISTER_ARRAYS = {REGS: "regs", UREGS: "uregs"}


@dataclass
class Hosted:
    """Host functions for the compiled code of D programs.

    :param values: functions that return variables, by name; reading a missing variable is an
        illegal operation.
    :param registers: returns ``regs[n]`` and ``uregs[n]``, or None for an unknown register.
    :param entered: returns a register, by its DWARF number, at the entry of the probed function, or
        None if it is unknown.
    :param stack: returns the frames of a stack (number of frames, whether it is the user stack).
    :param in_program: returns an address combined with the number of the program that contains it.
    :param destructive: performs a destructive action (name, argument).
    :param copy_out: writes bytes to an address of the current program.
    :param parent: returns the parent of a process.
    :param lock: returns the state of the lock at an address.
    :param user_end: first address above user programs; 0 if the kernel runs no programs.
    :param copies_at_once: whether the kernel's tracer copies user memory by one instruction, so
        that it reports the first unreadable address instead of the last.
    """

    values: Values
    registers: Callable[[str, int], int | None] | None = None
    entered: Callable[[int], int | None] | None = None
    stack: Callable[[int, bool], list[int]] | None = None
    in_program: Callable[[int], int] | None = None
    destructive: Callable[[str, int], None] | None = None
    copy_out: Callable[[int, bytes], None] | None = None
    parent: Callable[[int], int] = lambda _pid: 0
    lock: Callable[[int], LockState | None] | None = None
    user_end: int = 0
    copies_at_once: bool = False
    # Firing -> state of strtok(): (next address, end of the buffer), or None after the last token.
    _tokens: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.runtime: Runtime | None = None
        self._names = list(HOSTED)

    @property
    def rt(self) -> Runtime:
        """The runtime that executes the D programs' code."""
        assert self.runtime is not None
        return self.runtime

    def helpers(self) -> dict[int, Callable[[int, int, int, int, int], int]]:
        """Return the executor's helper functions, keyed by number."""
        functions: dict[int, Callable[[int, int, int, int, int], int]] = {
            Helper.VARIABLE: self._variable, Helper.STACK: self._stack,
            Helper.COPY_REFERENCE: self._copy_reference}
        for name, function in SUBROUTINES.items():
            method = getattr(self, f"_{name}", None)
            if name in LOCKS and self.lock is not None:
                functions[function.number] = self._of_lock(LOCKS[name])
            if method is not None:
                functions[function.number] = self._guarded(method)
        for number, name in enumerate(ON_HOST):
            functions[Helper.DESTRUCTIVE + number] = self._destroying(name)
        return functions

    @staticmethod
    def _guarded(method: Callable[..., int]) -> Callable[[int, int, int, int, int], int]:
        def call(a: int, b: int, c: int, d: int, e: int) -> int:
            try:
                return method(a, b, c, d, e)
            except subroutines.SubroutineFault as fault:
                raise RuntimeFault(fault.fault, fault.value) from None
        return call

    def _of_lock(self, tell: Callable[[LockState, int], int]
                 ) -> Callable[[int, int, int, int, int], int]:
        def call(a: int, *_rest: int) -> int:
            state = None if self.lock is None else self.lock(a)
            if state is None:
                raise RuntimeFault(Fault.ILLEGAL_OPERATION)
            return int(tell(state, self.rt.thread))
        return call

    def _destroying(self, name: str) -> Callable[[int, int, int, int, int], int]:
        def call(a: int, *_rest: int) -> int:
            if self.destructive is None:
                raise RuntimeFault(Fault.ILLEGAL_OPERATION)
            self.destructive(name, a)
            return 0
        return call

    # -- values ------------------------------------------------------------------------------------

    def _variable(self, number: int, index: int, *_rest: int) -> int:
        if number == IN_PROGRAM:
            return index if self.in_program is None else self.in_program(index)
        if number == ENTERED:
            value = None if self.entered is None else self.entered(index)
            if value is None:
                raise RuntimeFault(Fault.NOT_KEPT)
            return value
        if number in REGISTER_ARRAYS:
            if self.registers is None:
                raise RuntimeFault(Fault.ILLEGAL_OPERATION)
            register = self.registers(REGISTER_ARRAYS[number], index)
            if register is None:
                raise RuntimeFault(Fault.ILLEGAL_OPERATION)
            return register
        read = self.values.get(self._names[number]) if number < len(self._names) else None
        content = None if read is None else read()
        if content is None:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        return content if isinstance(content, int) else int(self.rt.keep(content))

    def _stack(self, to: int, frames: int, user: int, *_rest: int) -> int:
        addresses = [] if self.stack is None else self.stack(frames, bool(user))
        content = b"".join(pc.to_bytes(8, "little") for pc in addresses[:frames])
        self.rt.write(to, content.ljust(8 * frames, b"\0"))
        return 0

    def _copy_reference(self, to: int, pair: int, most: int, *_rest: int) -> int:
        address = int.from_bytes(self.rt.read(pair, 8), "little")
        length = int.from_bytes(self.rt.read(pair + 8, 8), "little")
        if length > most:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        self.rt.write(to, length.to_bytes(8, "little") + self.rt.read(address, length, True))
        return 0

    def _text(self, address: int) -> bytes:
        return bytes(self.rt.text(address))

    def _give(self, text: bytes | None) -> int:
        return 0 if text is None else int(self.rt.keep(text))

    def _optional(self, value: int, bits: int = 64) -> int | None:
        """Return a signed argument, or None if the program omitted the argument."""
        number = signed(value)
        if number == ABSENT:
            return None
        number &= (1 << bits) - 1
        return number - (1 << bits) if number >> bits - 1 else number

    # -- subroutines -------------------------------------------------------------------------------

    def _strlen(self, a: int, *_rest: int) -> int:
        return len(self._text(a))

    def _strchr(self, a: int, b: int, *_rest: int) -> int:
        return self._give(subroutines.strchr(self._text(a), b))

    def _strrchr(self, a: int, b: int, *_rest: int) -> int:
        return self._give(subroutines.strrchr(self._text(a), b))

    def _strstr(self, a: int, b: int, *_rest: int) -> int:
        return self._give(subroutines.strstr(self._text(a), self._text(b)))

    def _strtok(self, a: int, b: int, *_rest: int) -> int:
        """Implement ``strtok()``: return the address of the next token, or 0 after the last.

        The state belongs to one firing. As in DTrace, each call reads the string again.
        """
        serial, size = self.rt.serial, self.rt.string_size
        if serial not in self._tokens:  # while ERROR fires, keep the state of the failed clause
            self._tokens = {s: t for s, t in self._tokens.items() if s == serial - 1}
        separators = self._text(b)
        state = (a, a + size) if a else self._tokens.get(serial)
        self._tokens[serial] = None
        if state is None:
            return 0
        address, limit = state
        rest = bytes(self.rt.text(address, limit - address))
        span = subroutines.token(rest, separators, size - 1)
        if span is None:
            return 0
        begin, end = span
        if end < len(rest):
            self._tokens[serial] = address + end, limit
        return self._give(rest[begin:end])

    def _strjoin(self, a: int, b: int, *_rest: int) -> int:
        both = self._text(a) + self._text(b)
        if len(both) >= self.rt.string_size:
            raise RuntimeFault(Fault.NO_SCRATCH)
        return self._give(both)

    def _substr(self, a: int, b: int, c: int, *_rest: int) -> int:
        start = signed(b)
        return self._give(subroutines.substr(
            self._text(a), start, self._optional(c), self.rt.string_size))

    def _index(self, a: int, b: int, c: int, *_rest: int) -> int:
        return subroutines.index(self._text(a), self._text(b), self._optional(c))

    def _rindex(self, a: int, b: int, c: int, *_rest: int) -> int:
        return subroutines.rindex(self._text(a), self._text(b), self._optional(c))

    def _shorter(self, text: bytes) -> int:
        """Truncate a string to leave room for the NUL, and copy it to scratch memory."""
        return self._give(text[: self.rt.string_size - 1])

    def _basename(self, a: int, *_rest: int) -> int:
        return self._shorter(subroutines.basename(self._text(a)))

    def _dirname(self, a: int, *_rest: int) -> int:
        return self._shorter(subroutines.dirname(self._text(a)))

    def _cleanpath(self, a: int, *_rest: int) -> int:
        return self._give(subroutines.cleanpath(self._text(a)))

    def _toupper(self, a: int, *_rest: int) -> int:
        return self._shorter(self._text(a).upper())

    def _tolower(self, a: int, *_rest: int) -> int:
        return self._shorter(self._text(a).lower())

    def _lltostr(self, a: int, b: int, *_rest: int) -> int:
        return self._give(subroutines.lltostr(signed(a), self._optional(b, 32)))

    def _strtoll(self, a: int, b: int, *_rest: int) -> int:
        return subroutines.strtoll(self._text(a), self._optional(b, 32))

    def _json(self, a: int, b: int, *_rest: int) -> int:
        return self._give(subroutines.json(self._text(a), self._text(b)))

    def _inet_ntoa(self, a: int, *_rest: int) -> int:
        return self._give(subroutines.inet_ntoa(self.rt.read(a, 4)))

    def _inet_ntoa6(self, a: int, *_rest: int) -> int:
        return self._give(subroutines.inet_ntoa6(self._copied(a, 16)))

    def _inet_ntop(self, a: int, b: int, *_rest: int) -> int:
        def read(size: int) -> bytes:
            return self._copied(b, size) if size > 8 else bytes(self.rt.read(b, size))

        return self._give(subroutines.inet_ntop(a & 0xFFFFFFFF, read))

    def _copied(self, address: int, size: int) -> bytes:
        """Read what DTrace copies to its own memory; if it is lower, from its end."""
        return bytes(self.rt.read(address, size, bool(address >> 63)))

    def _rand(self, *_rest: int) -> int:
        return self._random.getrandbits(64)

    def _memref(self, a: int, b: int, *_rest: int) -> int:
        pair = int(self.rt.allocate(16))
        self.rt.write(pair, a.to_bytes(8, "little") + b.to_bytes(8, "little"))
        return pair

    def _memstr(self, a: int, b: int, c: int, *_rest: int) -> int:
        if c > MAX_MEMSTR:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        if not c:
            return 0
        content = self.rt.read(a, c - 1, True).replace(b"\0", bytes([b & 255]))
        buffer = int(self.rt.allocate(c))
        self.rt.write(buffer, content + b"\0")
        return buffer

    def _progenyof(self, a: int, *_rest: int) -> int:
        ancestors = self.values.get("ancestors")
        if ancestors is not None:
            known = ancestors()
            return int(isinstance(known, bytes) and a in struct.unpack(
                f"<{len(known) // 8}q", known))
        own_pid = self.values.get("pid")
        process = own_pid() if own_pid is not None else 0
        for _ in range(MAX_ANCESTORS):
            if process == a or not isinstance(process, int):
                return int(process == a)
            process = self.parent(process)
            if not process:
                break
        return 0

    def _of_program(self, address: int, size: int) -> int:
        """Check that copyin() and similar subroutines may read an address, and return the address.

        :raises RuntimeFault: if the address belongs to the kernel.
        """
        if self.user_end and address + size > self.user_end:
            raise RuntimeFault(Fault.BAD_ADDRESS, address)
        return address

    def _copyin(self, a: int, b: int, *_rest: int) -> int:
        buffer = int(self.rt.allocate(b))
        self.rt.write(buffer, self._read_program(a, b))
        return buffer

    def _read_program(self, address: int, size: int) -> bytes:
        return bytes(self.rt.read(self._of_program(address, size), size, not self.copies_at_once))

    def _copyinto(self, a: int, b: int, c: int, *_rest: int) -> int:
        if not self.rt.allocated(c, b):
            raise RuntimeFault(Fault.BAD_ADDRESS, c)
        self.rt.write(c, self._read_program(a, b))
        return 0

    def _copyinstr(self, a: int, b: int, *_rest: int) -> int:
        most = self._optional(b)
        limit = self.rt.string_size - 1
        if most is not None:
            limit = min(most % (1 << 64), limit)
        address = self._of_program(a, limit)
        try:
            return self._give(bytes(self.rt.text(address, limit)))
        except RuntimeFault:  # DTrace reports the last unreadable address, that of the NUL included
            self.rt.read(address, limit + 1, True)
            raise

    def _copyout(self, a: int, b: int, c: int, *_rest: int) -> int:
        return self._copied_out(b, self.rt.read(a, c, not self.copies_at_once))

    def _copyoutstr(self, a: int, b: int, c: int, *_rest: int) -> int:
        return self._copied_out(b, self._text(a)[:c])

    def _copied_out(self, to: int, content: bytes) -> int:
        if self.copy_out is None:
            raise RuntimeFault(Fault.BAD_ADDRESS, to)
        self.copy_out(to, content)
        return 0
