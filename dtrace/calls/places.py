"""C expressions that denote a place in memory.

Examples: ``ticks``, ``proc0.p_list.le_next->p_comm``, ``dump_avail[1]``,
``*(struct thread *)rdi``, ``((struct malloc_type *)0xffff...)->ks_next``, ``curthread->td_errno``.
The forms that the tools print are accepted, too: ``strlen+0x4`` (an offset in bytes) and
``kernel`ticks``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dtrace.debug.kernel_types import kernel_types
from dwarf.debug_file import DebugDataError
from dwarf.types import Array, Pointer, Structure, Type, Types, declare, find_member, size_of, strip
from emu.elf.symbols import KINDS
from emu.host.errors import KinstError
from emu.machine.machine import Machine

TOKEN = re.compile(
    r"\s*(->|(?:[\w.-]{1,60}`)?[A-Za-z_]\w*|0[xX][0-9a-fA-F]{1,16}|\d{1,20}|[][().*&+-])")
THREAD = "curthread"
MAX_TEXT, MAX_DEPTH = 1000, 50
MASK = (1 << 64) - 1
WORD = 8


@dataclass(frozen=True)
class Place:
    """A place in guest memory.

    :param text: expression, as the user wrote it.
    :param size: bytes.
    :param type: None if it is unknown.
    :param bits: for a bit-field, the number of its lowest bit from the address on, and its width.
    :param number: whether the expression is a number or register, which is the address.
    """

    text: str
    address: int
    size: int
    type: Type | None
    bits: tuple[int, int] | None = None
    number: bool = False


@dataclass(frozen=True)
class _At:
    """An object in memory or, if ``loaded`` is true, a number or the value of a register.

    :param bits: as in ``Place``.
    """

    value: int
    type: Type | None
    loaded: bool = False
    bits: tuple[int, int] | None = None


class Places:
    """Resolver that maps expressions to places in a machine's memory.

    :raises KinstError: from ``find``, with the reason.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._types: Types | None = None
        self._tokens: list[str] = []
        self._text = ""
        self._depth = 0

    def find(self, text: str) -> Place:
        """Return the place that an expression denotes."""
        self._text, self._tokens, at, self._depth = text, [], 0, 0
        if len(text) > MAX_TEXT:
            raise KinstError(f"'{text[:40]}...' is too long: the expression for a place in memory "
                             f"may have at most {MAX_TEXT} characters")
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            if match is None:
                raise self._wrong(f"'{text[at:at + 10]}' cannot be parsed")
            self._tokens.append(match[1])
            at = match.end()
        found = self._unary()
        if self._peek() in ("+", "-"):
            sign = -1 if self._take() == "-" else 1
            bytes_on = self._number(self._take("")) * sign
            found = _At((found.value + bytes_on) & MASK, None, True)
        if self._tokens:
            raise self._wrong(f"unexpected '{self._tokens[0]}'")
        if found.loaded:
            pointed = strip(found.type) if found.type is not None else None
            if isinstance(pointed, Pointer):
                return self._place(found.value, pointed.target)
            return Place(text, found.value, WORD, None, number=True)
        return self._place(found.value, found.type, found.bits)

    def _place(self, address: int, kind: Type | None, bits: tuple[int, int] | None = None
               ) -> Place:
        return Place(self._text, address, (size_of(kind) if kind is not None else 0) or WORD, kind,
                     bits)

    def _wrong(self, why: str) -> KinstError:
        return KinstError(f"'{self._text[:80]}' is not a place in memory: {why}; give an address, "
                          "a symbol, a register, or a C expression such as a->b, a[3] or "
                          "*(struct thread *)rdi")

    def _peek(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, wanted: str = "") -> str:
        if not self._tokens or (wanted and self._tokens[0] != wanted):
            raise self._wrong(f"{wanted or 'a name'} is missing")
        return self._tokens.pop(0)

    def _unary(self) -> _At:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong("the expression is nested too deeply")
        if self._peek() == "*":
            self._take()
            return self._pointed(self._unary())
        if self._peek() == "(" and self._tokens[1:2] in (["struct"], ["union"]):
            self._take()
            kind = self._type()
            self._take(")")
            return _At(self._value(self._unary()), kind, True)
        return self._postfix()

    def _postfix(self) -> _At:
        if self._peek() == "(":
            self._take()
            found = self._unary()
            self._take(")")
        else:
            found = self._name(self._take())
        while self._peek() in (".", "->", "["):
            how = self._take()
            if how == "[":
                index = self._number(self._take())
                self._take("]")
                found = self._element(found, index)
            else:
                found = self._member(self._pointed(found) if how == "->" else found, self._take())
        return found

    def _number(self, text: str) -> int:
        try:
            return int(text, 0)
        except ValueError:
            raise self._wrong(f"'{text}' is not a number") from None

    def _name(self, name: str) -> _At:
        machine = self._machine
        if name[0].isdigit():
            return _At(self._number(name) & MASK, None, True)
        name = {"sp": machine.arch.sp, "pc": machine.arch.pc}.get(name, name)
        if name in machine.arch.registers:
            return _At(machine.read_register(name), None, True)
        if name == THREAD:
            return self._thread()
        module, _tick, name = name.rpartition("`")
        symbol = machine.image.symbols.find(name)
        if symbol is not None and module and symbol.module_name != module:
            symbol = next((s for s in machine.image.symbols.named(name)
                           if s.module_name == module), None)
        if symbol is None:
            advice = machine.image.symbols.advice(name, KINDS)
            raise self._wrong(f"the kernel has no symbol '{name}'"
                              + (f" ({advice})" if advice else ""))
        kind = self._asked(lambda types: types.variable(name, symbol.address))
        if kind is None and symbol.size and not self._tokens:
            return _At(symbol.address, None)
        return _At(symbol.address, kind)

    def _thread(self) -> _At:
        """Return ``curthread``, a ``struct thread *`` as in D."""
        machine = self._machine
        if machine.guest.boot.shell_prompt and not machine.pc >> 63:
            raise self._wrong("curthread exists only in the kernel, but the machine is executing a "
                              "user program")
        kind = self._asked(lambda types: next(iter(types.named("struct thread")), None))
        if kind is None:
            raise self._wrong("curthread is unknown, because the kernel has no type "
                              "'struct thread'")
        thread = machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))
        return _At(thread, Pointer(lambda: kind), True)

    def _asked(self, ask: Callable[[Types], Type | None]) -> Type | None:
        """Look up a type in the debug data; return None if the kernel has no debug data."""
        try:
            if self._types is None:
                self._types = kernel_types(self._machine.image)
            return ask(self._types)
        except DebugDataError:
            return None

    def _type(self) -> Type:
        name = f"{self._take()} {self._take()}"
        found = self._asked(lambda types: next(iter(types.named(name)), None))
        if found is None:
            raise self._wrong(f"the kernel has no type '{name}'")
        while self._peek() == "*":
            self._take()
            found = Pointer(lambda kind=found: kind)  # type: ignore[misc]
        return found

    def _value(self, at: _At) -> int:
        return at.value if at.loaded else self._machine.read_u64(at.value)

    def _pointed(self, at: _At) -> _At:
        kind = strip(at.type) if at.type is not None else None
        if isinstance(kind, Array) and not at.loaded:
            return _At(at.value, kind.element)
        if not isinstance(kind, Pointer):
            raise self._wrong(f"{self._declared(at)} is not a pointer")
        return _At(self._value(at), kind.target)

    def _member(self, at: _At, name: str) -> _At:
        kind = strip(at.type) if at.type is not None else None
        if not isinstance(kind, Structure) or at.loaded:
            raise self._wrong(f"{self._declared(at)} has no members")
        member = find_member(kind, name)
        if member is None:
            raise self._wrong(f"{declare(kind)} has no member '{name}'")
        bits = None if member.width is None else (member.offset % 8, member.width)
        return _At(at.value + member.offset // 8 & MASK, member.type, bits=bits)

    def _element(self, at: _At, index: int) -> _At:
        inner = self._pointed(at)
        if inner.type is None:
            raise self._wrong("the type of the elements is unknown")
        return _At(inner.value + index * size_of(inner.type) & MASK, inner.type)

    @staticmethod
    def _declared(at: _At) -> str:
        return "a number" if at.type is None else declare(at.type)
