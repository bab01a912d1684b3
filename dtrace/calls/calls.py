"""The mini-language of injected calls: ``strlen("hello")``, ``p = buf(64); f(p, &sym, 3)``.

A program consists of calls and assignments separated by ``;``.  Arguments are integers, strings,
``buf(N)`` (N zero bytes), ``bytes("..")`` (without a terminating NUL), ``&symbol`` (an address,
optionally followed by ``+N`` or ``-N``), names assigned earlier (``p+8``), kernel variables, and
calls.  Assigning to the name of a kernel variable sets that variable.
"""

import difflib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dtrace.calls.prototypes import (
    UNCHECKED,
    Prototypes,
    check_data,
    check_number,
    check_shape,
    plain,
    registers,
)
from dtrace.calls.strings import CallSyntaxError, unescape
from dtrace.debug.symbols import find_function, find_symbol
from dwarf.types import Enumeration, Integer, Pointer, Type, Void, declare, size_of, strip
from emu.elf.image import Image
from emu.elf.symbols import STT_NOTYPE, STT_OBJECT, Symbol
from emu.host.errors import KinstError
from emu.machine.call import Caller

MAX_SOURCE, MAX_DEPTH, MAX_BUFFER, MAX_DIGITS = 65536, 32, 64 << 20, 40

TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?(?:0[xX][0-9a-fA-F]+|\d+))|(?P<name>[A-Za-z_.$][\w.$]*)"""
    r"""|(?P<string>"(?:[^"\\]|\\.)*")|(?P<char>'(?:[^'\\]|\\.)+')|(?P<mark>[(),;=&+\-]))""",
    re.DOTALL,
)


@dataclass(frozen=True)
class Literal:
    """Integer or character argument."""
    value: int


@dataclass(frozen=True)
class Data:
    """Bytes to be placed in guest memory."""

    content: bytes


@dataclass(frozen=True)
class Address:
    """Address of a symbol, plus an offset in bytes."""
    symbol: str
    offset: int


@dataclass(frozen=True)
class Identifier:
    """Value of an assigned name or of a kernel variable, plus an offset."""
    name: str
    offset: int


@dataclass(frozen=True)
class Invocation:
    """Call to a kernel function."""
    function: str
    arguments: tuple["Argument", ...]


Argument = Literal | Data | Address | Identifier | Invocation


@dataclass(frozen=True)
class Statement:
    """A value and, for an assignment, the name to which the value is assigned."""
    target: str | None
    value: Argument


class _Parser:
    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise CallSyntaxError(f"the call is longer than {MAX_SOURCE} characters")
        self.source = source
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while source[at:].strip():
            match = TOKEN.match(source, at)
            if match is None:
                start = at + len(source[at:]) - len(source[at:].lstrip())
                raise CallSyntaxError(
                    f"'{source}': cannot parse '{source[start : start + 10]}' at column {start + 1}"
                )
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self.at = 0

    def peek(self, ahead: int = 0) -> tuple[str, str, int]:
        """Return (kind, text, column) of the next token, or of the token ``ahead`` tokens later."""
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ("end", "", len(self.source))

    def fail(self, expected: str) -> CallSyntaxError:
        """Return a syntax error at the next token."""
        _kind, text, column = self.peek()
        actual = f"'{text}'" if text else "the end"
        return CallSyntaxError(
            f"'{self.source}': expected {expected}, found {actual} at column {column + 1}"
        )

    def mark(self, text: str) -> bool:
        """Consume a punctuation mark if it comes next."""
        if self.peek()[:2] == ("mark", text):
            self.at += 1
            return True
        return False

    def need(self, text: str) -> None:
        """Consume a punctuation mark, which must come next."""
        if not self.mark(text):
            raise self.fail(f"'{text}'")

    def program(self) -> list[Statement]:
        """Parse the whole text."""
        statements = []
        while self.peek()[0] != "end":
            if self.mark(";"):
                continue
            target = None
            if self.peek()[0] == "name" and self.peek(1)[:2] == ("mark", "="):
                target = self.peek()[1]
                self.at += 2
            statements.append(Statement(target, self.argument(0)))
            if self.peek()[0] != "end":
                self.need(";")
        if not statements:
            raise CallSyntaxError("the call is empty; write a call like strlen(\"hello\")")
        return statements

    def argument(self, depth: int) -> Argument:
        """Parse an argument or value, including nested calls."""
        if depth > MAX_DEPTH:
            raise CallSyntaxError(f"calls are nested deeper than {MAX_DEPTH} levels")
        kind, text, _column = self.peek()
        if kind == "number":
            self.at += 1
            value = _integer(text)
            if not -(1 << 63) <= value < 1 << 64:
                raise CallSyntaxError(f"the number {text} does not fit in 64 bits")
            return Literal(value)
        if kind == "string":
            self.at += 1
            return Data(unescape(text[1:-1]) + b"\0")
        if kind == "char":
            self.at += 1
            return Literal(int.from_bytes(unescape(text[1:-1])[:1], "little"))
        if self.mark("&"):
            return self.address()
        if kind != "name":
            raise self.fail("an argument")
        self.at += 1
        if not self.mark("("):
            return Identifier(text, self.offset())
        if text == "buf":
            kind, size, _column = self.peek()
            if kind != "number" or not 0 < _integer(size) <= MAX_BUFFER:
                raise self.fail(f"a size from 1 to {MAX_BUFFER}")
            self.at += 1
            self.need(")")
            return Data(bytes(_integer(size)))
        if text == "bytes":
            kind, content, _column = self.peek()
            if kind != "string":
                raise self.fail("a string")
            self.at += 1
            self.need(")")
            return Data(unescape(content[1:-1]))
        arguments: list[Argument] = []
        if not self.mark(")"):
            while True:
                arguments.append(self.argument(depth + 1))
                if self.mark(")"):
                    break
                self.need(",")
        return Invocation(text, tuple(arguments))

    def address(self) -> Address:
        """Parse the symbol and the offset after ``&``."""
        kind, text, _column = self.peek()
        if kind != "name":
            raise self.fail("a symbol")
        self.at += 1
        return Address(text, self.offset())

    def offset(self) -> int:
        """Parse an optional ``+N`` or ``-N`` after an address."""
        kind, number, _column = self.peek()
        if kind == "number" and number.startswith("-"):
            self.at += 1
            return _integer(number)
        sign = 1 if self.mark("+") else -1 if self.mark("-") else 0
        if not sign:
            return 0
        kind, number, _column = self.peek()
        if kind != "number":
            raise self.fail("a number")
        self.at += 1
        return sign * _integer(number)


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise CallSyntaxError(f"the number {text[:20]}... has more than {MAX_DIGITS} digits")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("-")
    if digits[:2].lower() == "0x":
        return sign * int(digits, 16)
    if len(digits) > 1 and digits.startswith("0"):
        if digits.strip("01234567"):
            raise CallSyntaxError(f"{text}: a number that begins with 0 must be octal; use only "
                                  "the digits 0 to 7")
        return sign * int(digits, 8)
    return sign * int(digits)


def parse(source: str) -> list[Statement]:
    """Parse the text of an injected call.

    :raises CallSyntaxError: with the column of the error in its message.
    """
    return _Parser(source).program()


def check(
    image: Image, program: list[Statement], prototypes: Prototypes | None = None,
    names: Iterable[str] = (),
) -> None:
    """Look up every name in a program, and check all calls against the functions' prototypes.

    Nothing is executed.

    :param names: names that are already assigned.
    :raises KinstError: if a function, symbol or name is unknown, or if arguments do not fit.
    """
    known = set(names)

    def held(function: Symbol, arguments: tuple[Argument, ...]) -> None:
        procedure = (prototypes.of(function.name, function.address)
                     if prototypes is not None else None)
        if prototypes is None or procedure is None:
            return
        if prototypes.changed(function.name, function.address):
            raise KinstError(f"{function.name}: the compiler has changed how the function takes "
                             f"its arguments, so an injected call cannot pass them; {UNCHECKED}")
        check_shape(function.name, procedure, len(arguments))
        for number, argument in enumerate(arguments):
            match argument:
                case Data():
                    check_data(function.name, procedure, number)
                case Literal(value):
                    check_number(function.name, procedure, number, value)
                case Invocation(inner, _):
                    called = find_function(image, inner)
                    returned = prototypes.result(called.name, called.address)
                    if returned is not None and isinstance(strip(returned), Void):
                        raise KinstError(
                            f"{declare(procedure, function.name)}: argument {number + 1} is "
                            f"{inner}(...), which returns nothing")

    def visit(argument: Argument) -> None:
        match argument:
            case Invocation(function, arguments):
                held(find_function(image, function), arguments)
                for inner in arguments:
                    visit(inner)
            case Address(symbol, _):
                find_symbol(image, symbol)
            case Identifier(name, _) if name not in known:
                if _kernel_has(image, name):
                    _variable(image, name, prototypes)
                    return
                raise KinstError(f"'{name}' is not assigned; write &{name} for a symbol, or "
                                 f'"{name}" for a string (in a shell, put the whole call in single '
                                 "quotes)")
            case _:
                pass

    for statement in program:
        visit(statement.value)
        if statement.target and statement.target not in known:
            if _kernel_has(image, statement.target):
                _variable(image, statement.target, prototypes)
            known.add(statement.target)


def _kernel_has(image: Image, name: str) -> bool:
    return image.symbols.find(name) is not None


def _variable(image: Image, name: str, prototypes: Prototypes | None) -> "KernelVariable":
    """Return a kernel variable that can be read and set.

    :raises KinstError: for a function, for a name that several variables have, and for a variable
        that is not a number or pointer of 1, 2, 4 or 8 bytes.
    """
    symbols = [s for s in image.symbols.named(name) if s.kind in (STT_NOTYPE, STT_OBJECT)]
    if not symbols:
        raise KinstError(f"{name} is a kernel function, called as {name}(...); choose another name "
                         "for your value")
    if len({symbol.address for symbol in symbols}) > 1:
        raise KinstError(f"{name}: the kernel has {len(symbols)} variables with this name; choose "
                         "another name for your value")
    symbol = symbols[0]
    if name.startswith(TEMPLATES):
        raise KinstError(f"{name} is a template that the kernel copies for each CPU or network "
                         "stack, so it cannot be read or set by name; choose another name for your "
                         "value")
    types = prototypes.types() if prototypes is not None else None
    kind = types.variable(symbol.name, symbol.address) if types is not None else None
    size = symbol.size if kind is None else size_of(kind)
    if size not in (1, 2, 4, 8) or (
            kind is not None and not isinstance(strip(kind), Integer | Enumeration | Pointer)):
        what = f"{size} bytes" if kind is None else declare(kind, name)
        raise KinstError(f"{name}: the kernel's {name} is not a number or pointer ({what}); use "
                         f"&{name} for its address, or choose another name for your value")
    return KernelVariable(symbol, kind, size)


# Name prefixes of the templates of FreeBSD's per-CPU and per-network-stack variables.
TEMPLATES = ("pcpu_entry_", "vnet_entry_")


@dataclass(frozen=True)
class KernelVariable:
    """A kernel variable of 1, 2, 4 or 8 bytes; ``type`` is None if the type is unknown."""

    symbol: Symbol
    type: Type | None
    size: int


def _number(value: int, variable: KernelVariable) -> str:
    kind = strip(variable.type) if variable.type is not None else None
    if isinstance(kind, Pointer):
        return f"{value:#x}"
    if isinstance(kind, Integer | Enumeration) and kind.signed and value >> 8 * kind.size - 1:
        value -= 1 << 8 * kind.size
    return str(value)


@dataclass
class Evaluation:
    """Evaluator of injected calls on a machine; keeps assigned names and buffers between runs.

    :param prototypes: prototypes by which arguments are checked and converted; None for no checks.
    :param names: values of assigned names.
    :param sizes: sizes of the buffers in guest memory, by address.
    :param last_arguments: arguments of the last call.
    :param kind: type of the last value; None if it is unknown.
    """

    caller: Caller
    prototypes: Prototypes | None = None
    names: dict[str, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    last_arguments: list[int] = field(default_factory=list)
    kind: Type | None = None
    changed: list[str] = field(default_factory=list)  # messages about assignments

    def run(self, program: list[Statement]) -> int:
        """Run a program and return the value of the last statement.

        :raises KinstError: if a value does not fit in a kernel variable.
        """
        value = 0
        for statement in program:
            value = self._value(statement.value)
            if statement.target:
                self._assign(statement.target, value)
        return value

    def _assign(self, name: str, value: int) -> None:
        """Assign to a kernel variable or, if the kernel lacks it, to a variable of the program."""
        machine = self.caller.machine
        if name in self.names or not _kernel_has(machine.image, name):
            if name not in self.names:
                near = difflib.get_close_matches(name, [
                    one for one in self._variables if abs(len(one) - len(name)) < 3], 3, 0.8)
                if near:
                    self.changed.append(f"{name}: assigned as a new name, since the kernel has no "
                                        f"such variable; did you mean {', '.join(near)}?")
            self.names[name] = value
            return
        variable = _variable(machine.image, name, self.prototypes)
        symbol = variable.symbol
        signed, bits = value - (1 << 64 if value >> 63 else 0), 8 * variable.size
        if not -(1 << bits - 1) <= signed < 1 << bits and value >> bits:
            raise KinstError(f"{name} = {signed}: the value does not fit in the {variable.size} "
                             f"bytes of the kernel variable {name}")
        before = self._read(variable)
        stored = value & (1 << bits) - 1
        machine.write(symbol.address, stored.to_bytes(variable.size, "little"))
        self.kind = variable.type
        spelled = (f"{variable.size} bytes" if variable.type is None else
                   declare(variable.type, name))
        self.changed.append(f"{name}: {_number(before, variable)} -> {_number(stored, variable)} "
                            f"({spelled}, at {symbol.address:#x})")

    @functools.cached_property
    def _variables(self) -> set[str]:
        return self.caller.machine.image.symbols.names((STT_NOTYPE, STT_OBJECT))

    def _read(self, variable: KernelVariable) -> int:
        data = self.caller.machine.read(variable.symbol.address, variable.size)
        return int.from_bytes(data, "little")

    def _value(self, argument: Argument) -> int:
        self.kind = None
        match argument:
            case Literal(value):
                return value & (1 << 64) - 1
            case Data(content):
                address = self.caller.place(content)
                self.sizes[address] = len(content)
                return address
            case Address(symbol, offset):
                return find_symbol(self.caller.machine.image, symbol) + offset & (1 << 64) - 1
            case Identifier(name, offset):
                if name in self.names:
                    return self.names[name] + offset & (1 << 64) - 1
                machine, prototypes = self.caller.machine, self.prototypes
                variable = _variable(machine.image, name, prototypes)
                if variable.type is None:
                    return self._read(variable) + offset & (1 << 64) - 1
                value = plain(machine, variable.type, self._read(variable)) or 0
                self.kind = variable.type if not offset else None
                return value + offset & (1 << 64) - 1
            case Invocation(function, arguments):
                values = [self._value(inner) for inner in arguments]
                machine, prototypes = self.caller.machine, self.prototypes
                target = find_function(machine.image, function)
                procedure = (prototypes.of(target.name, target.address)
                             if prototypes is not None else None)
                passed = (registers(machine, function, procedure, values)
                          if procedure is not None else values)
                result = self.caller.call_symbol(target, passed)
                self.last_arguments = values
                self.kind = procedure.result if procedure is not None else None
                # If the result is narrower than its register, the upper bits are undefined.
                return (plain(machine, self.kind, result) or 0) & (1 << 64) - 1
