"""What a program's code asks the host for: subroutines, and variables that no context holds."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from dtrace.bpf._runtime import Runtime, RuntimeFault
from dtrace.bpf.interpreter import signed
from dtrace.bpf.layout import IN_PROGRAM, REGS, UREGS, Fault, Helper
from dtrace.d.compile.actions import ON_HOST
from dtrace.d.compile.code import ABSENT
from dtrace.d.language.identifiers import HOSTED, SUBROUTINES
from dtrace.run import subroutines
from dtrace.run.locks import LockState

Values = dict[str, Callable[[], int | bytes | None]]
MAX_MEMSTR = 4096
MAX_ANCESTORS = 1024
LOCKS: dict[str, Callable[[LockState, int], int]] = {  # of a lock's state and the thread
    "mutex_owned": lambda lock, _thread: lock.held,
    "mutex_owner": lambda lock, _thread: lock.owner,
    "mutex_type_adaptive": lambda lock, _thread: lock.sleeps,
    "mutex_type_spin": lambda lock, _thread: lock.spins,
    **dict.fromkeys(("rw_read_held", "sx_shared_held"),
                    lambda lock, _thread: lock.held and not lock.owner),
    # Held by anybody, and by the thread that asks.
    **dict.fromkeys(("rw_write_held", "sx_exclusive_held"), lambda lock, _thread: lock.owner != 0),
    **dict.fromkeys(("rw_iswriter", "sx_isexclusive"), lambda lock, thread: lock.owner == thread),
}
REGISTER_ARRAYS = {REGS: "regs", UREGS: "uregs"}


@dataclass
class Hosted:
    """:param values: of variables, by name; a variable that is missing is an illegal operation.
    :param parent: gives the parent of a process.
    :param registers: gives ``regs[n]`` and ``uregs[n]``; None where there is none.
    :param in_program: gives an address with the program that it is in.
    :param stack: gives the frames of a stack (how many, whether the user's).
    """

    values: Values
    registers: Callable[[str, int], int | None] | None = None
    stack: Callable[[int, bool], list[int]] | None = None
    in_program: Callable[[int], int] | None = None
    destructive: Callable[[str, int], None] | None = None
    copy_out: Callable[[int, bytes], None] | None = None
    parent: Callable[[int], int] = lambda _pid: 0
    lock: Callable[[int], LockState | None] | None = None
    user_end: int = 0  # the first address behind a program's; 0: there are no programs
    # What strtok() goes on with, by the firing: (address, where the string must have ended).
    _tokens: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.runtime: Runtime | None = None
        self._names = list(HOSTED)

    @property
    def rt(self) -> Runtime:
        assert self.runtime is not None
        return self.runtime

    def helpers(self) -> dict[int, Callable[[int, int, int, int, int], int]]:
        """By number, for the executor."""
        found: dict[int, Callable[[int, int, int, int, int], int]] = {
            Helper.VARIABLE: self._variable, Helper.STACK: self._stack,
            Helper.COPY_REFERENCE: self._copy_reference}
        for name, function in SUBROUTINES.items():
            method = getattr(self, f"_{name}", None)
            if name in LOCKS and self.lock is not None:
                found[function.number] = self._of_lock(LOCKS[name])
            if method is not None:
                found[function.number] = self._guarded(method)
        for number, name in enumerate(ON_HOST):
            found[Helper.DESTRUCTIVE + number] = self._destroying(name)
        return found

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
        if number in REGISTER_ARRAYS:
            if self.registers is None:
                raise RuntimeFault(Fault.ILLEGAL_OPERATION)
            found = self.registers(REGISTER_ARRAYS[number], index)
            if found is None:
                raise RuntimeFault(Fault.ILLEGAL_OPERATION)
            return found
        give = self.values.get(self._names[number]) if number < len(self._names) else None
        value = None if give is None else give()
        if value is None:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        return value if isinstance(value, int) else int(self.rt.keep(value))

    def _stack(self, to: int, frames: int, user: int, *_rest: int) -> int:
        found = [] if self.stack is None else self.stack(frames, bool(user))
        content = b"".join(pc.to_bytes(8, "little") for pc in found[:frames])
        self.rt.write(to, content.ljust(8 * frames, b"\0"))
        return 0

    def _copy_reference(self, to: int, pair: int, most: int, *_rest: int) -> int:
        address = int.from_bytes(self.rt.read(pair, 8), "little")
        length = int.from_bytes(self.rt.read(pair + 8, 8), "little")
        if length > most:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        self.rt.write(to, length.to_bytes(8, "little") + self.rt.read(address, length))
        return 0

    def _text(self, address: int) -> bytes:
        return bytes(self.rt.text(address))

    def _give(self, text: bytes | None) -> int:
        return 0 if text is None else int(self.rt.keep(text))

    def _optional(self, value: int, bits: int = 64) -> int | None:
        """An argument that may have been left out."""
        found = signed(value)
        if found == ABSENT:
            return None
        found &= (1 << bits) - 1
        return found - (1 << bits) if found >> bits - 1 else found

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
        """The state is one firing's; the string is read again at each call, as DTrace does."""
        serial, most = self.rt.serial, self.rt.string_size
        if serial not in self._tokens:  # the ERROR probe's is beside that of the clause
            self._tokens = {s: t for s, t in self._tokens.items() if s == serial - 1}
        separators = self._text(b)
        state = (a, a + most) if a else self._tokens.get(serial)
        self._tokens[serial] = None
        if state is None:
            return 0
        address, limit = state
        rest = bytes(self.rt.text(address, limit - address))
        found = subroutines.token(rest, separators, most - 1)
        if found is None:
            return 0
        begin, end = found
        if end < len(rest):
            self._tokens[serial] = address + end, limit
        return self._give(rest[begin:end])

    def _strjoin(self, a: int, b: int, *_rest: int) -> int:
        both = self._text(a) + self._text(b)
        if len(both) >= self.rt.string_size:
            raise RuntimeFault(Fault.NO_SCRATCH)
        return self._give(both)

    def _substr(self, a: int, b: int, c: int, *_rest: int) -> int:
        start = self._optional(b, 32)
        return self._give(subroutines.substr(
            self._text(a), start or 0, self._optional(c, 32), self.rt.string_size))

    def _index(self, a: int, b: int, c: int, *_rest: int) -> int:
        return subroutines.index(self._text(a), self._text(b), self._optional(c, 32))

    def _rindex(self, a: int, b: int, c: int, *_rest: int) -> int:
        return subroutines.rindex(self._text(a), self._text(b), self._optional(c, 32))

    def _shorter(self, text: bytes) -> int:
        """A string with room for its NUL, as these subroutines give it."""
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
        return self._give(subroutines.inet_ntoa6(self.rt.read(a, 16)))

    def _inet_ntop(self, a: int, b: int, *_rest: int) -> int:
        return self._give(subroutines.inet_ntop(
            a & 0xFFFFFFFF, lambda size: bytes(self.rt.read(b, size))))

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
        content = self.rt.read(a, c - 1).replace(b"\0", bytes([b & 255]))
        at = int(self.rt.allocate(c))
        self.rt.write(at, content + b"\0")
        return at

    def _progenyof(self, a: int, *_rest: int) -> int:
        ancestors = self.values.get("ancestors")
        if ancestors is not None:
            known = ancestors()
            return int(isinstance(known, bytes) and a in struct.unpack(
                f"<{len(known) // 8}q", known))
        give = self.values.get("pid")
        at = give() if give is not None else 0
        for _ in range(MAX_ANCESTORS):
            if at == a or not isinstance(at, int):
                return int(at == a)
            at = self.parent(at)
            if not at:
                break
        return 0

    def _of_program(self, address: int, size: int) -> int:
        """An address that copyin() and the like may read.

        :raises RuntimeFault: for the kernel's memory.
        """
        if self.user_end and address + size > self.user_end:
            raise RuntimeFault(Fault.BAD_ADDRESS, address)
        return address

    def _copyin(self, a: int, b: int, *_rest: int) -> int:
        at = int(self.rt.allocate(b))
        self.rt.write(at, self.rt.read(self._of_program(a, b), b))
        return at

    def _copyinto(self, a: int, b: int, c: int, *_rest: int) -> int:
        content = self.rt.read(self._of_program(a, b), b)
        if not self.rt.allocated(c, b):
            raise RuntimeFault(Fault.BAD_ADDRESS, a)
        self.rt.write(c, content)
        return 0

    def _copyinstr(self, a: int, b: int, *_rest: int) -> int:
        most = self._optional(b)
        limit = self.rt.string_size - 1
        if most is not None:
            limit = min(most % (1 << 64), limit)
        return self._give(bytes(self.rt.text(self._of_program(a, limit), limit)))

    def _copyout(self, a: int, b: int, c: int, *_rest: int) -> int:
        return self._copied_out(b, self.rt.read(a, c))

    def _copyoutstr(self, a: int, b: int, c: int, *_rest: int) -> int:
        return self._copied_out(b, self._text(a)[:c])

    def _copied_out(self, to: int, content: bytes) -> int:
        if self.copy_out is None:
            raise RuntimeFault(Fault.BAD_ADDRESS, to)
        self.copy_out(to, content)
        return 0
