"""Allocation of memory for a program's variables and constants."""

from dataclasses import dataclass, field

from dtrace.d.language.identifiers import Scope, Variable
from dtrace.d.language.types import is_scalar, is_string, width
from dwarf.types import Type

MAX_ZEROS = 1 << 16


@dataclass
class Storage:
    """Memory layout of a program's variables and constants, as offsets in their regions.

    :param string_size: maximum size of a string in bytes.
    :param keyed: (size of the value, 0 for a number / 1 for a string / 2 for bytes, whether it is
        thread-local, maximum size of the key) of each variable with a key.
    :param globals: (offset, size) of each global variable without a key.
    :param locals: the same of each clause-local variable.
    :param hosted: names of the variables that the program reads and the guest or host provides.
    """

    string_size: int
    strings: bytearray = field(default_factory=lambda: bytearray(8))
    globals_size: int = 0
    locals_size: int = 0
    work_size: int = 0
    keyed: list[tuple[int, int, bool, int]] = field(default_factory=list)
    globals: list[tuple[int, int]] = field(default_factory=list)
    locals: list[tuple[int, int]] = field(default_factory=list)
    hosted: set[str] = field(default_factory=set)
    _texts: dict[bytes, int] = field(default_factory=dict)
    _zeros: int = 0

    def text(self, content: bytes) -> int:
        """Return the offset of a string constant; add the string if it is not stored yet."""
        content = content.split(b"\0")[0]
        if content not in self._texts:
            self._texts[content] = len(self.strings)
            self.strings += content + b"\0"
        return self._texts[content]

    def content(self, content: bytes) -> int:
        """Add constant bytes and return their offset."""
        self.strings += bytes(-len(self.strings) % 8)
        at = len(self.strings)
        self.strings += content
        return at

    def size(self, kind: Type) -> int:
        """Return the size in bytes that a value of a type has in memory."""
        return self.string_size if is_string(kind) else width(kind)

    def place(self, variable: Variable) -> None:
        """Assign an offset to a variable, or a number if the variable has a key."""
        if variable.number >= 0 or variable.offset >= 0:
            return
        size = 8 if is_scalar(variable.type) else self.size(variable.type)
        if variable.keys is not None or variable.scope is Scope.THREAD:
            what = 0 if is_scalar(variable.type) else 1 if is_string(variable.type) else 2
            variable.number = len(self.keyed)
            self.keyed.append((size, what, variable.scope is Scope.THREAD,
                               sum(self.key_size(k) for k in variable.keys or ())))
        else:
            room = 8 + -(-size // 8) * 8  # the word before it is 1 if a string or structure is NULL
            if variable.scope is Scope.LOCAL:
                variable.offset, self.locals_size = self.locals_size + 8, self.locals_size + room
                self.locals.append((variable.offset, size))
            else:
                variable.offset, self.globals_size = self.globals_size + 8, self.globals_size + room
                self.globals.append((variable.offset, size))

    def key_size(self, kind: Type) -> int:
        """Return the maximum size in bytes that a value of a type has in a key."""
        if is_string(kind):
            return 8 + -(-self.string_size // 8) * 8
        return 8 if is_scalar(kind) else -(-self.size(kind) // 8) * 8

    def zeros(self, size: int) -> int:
        """Return the offset of min(``size``, ``MAX_ZEROS``) zero bytes among the constants.

        Larger variables are refused when the program is linked.
        """
        size = min(size, MAX_ZEROS)
        if self._zeros < size:
            self._zeros_at = len(self.strings)
            self.strings += bytes(size)
            self._zeros = size
        return self._zeros_at
