"""Where a program's variables and constants are."""

from dataclasses import dataclass, field

from dtrace.d.language.identifiers import Scope, Variable
from dtrace.d.language.types import is_scalar, is_string, width
from dwarf.types import Type

MAX_ZEROS = 1 << 16


@dataclass
class Storage:
    """Where they are, by offsets.

    :param string_size: the most bytes of a string.
    :param keyed: (size of the value, 0 a number / 1 a string / 2 bytes, thread-local, size of the
        key) of each variable that has a key.
    :param hosted: the names of the variables that are the guest's, as far as they are read.
    """

    string_size: int
    strings: bytearray = field(default_factory=lambda: bytearray(8))
    globals_size: int = 0
    locals_size: int = 0
    work_size: int = 0
    keyed: list[tuple[int, int, bool, int]] = field(default_factory=list)
    hosted: set[str] = field(default_factory=set)
    _texts: dict[bytes, int] = field(default_factory=dict)
    _zeros: int = 0

    def text(self, content: bytes) -> int:
        """The offset of a string constant."""
        content = content.split(b"\0")[0]
        if content not in self._texts:
            self._texts[content] = len(self.strings)
            self.strings += content + b"\0"
        return self._texts[content]

    def content(self, content: bytes) -> int:
        """The offset of bytes that nobody writes."""
        self.strings += bytes(-len(self.strings) % 8)
        at = len(self.strings)
        self.strings += content
        return at

    def size(self, kind: Type) -> int:
        """How many bytes a value takes in memory."""
        return self.string_size if is_string(kind) else width(kind)

    def place(self, variable: Variable) -> None:
        """Give a variable its place."""
        if variable.number >= 0 or variable.offset >= 0:
            return
        size = 8 if is_scalar(variable.type) else self.size(variable.type)
        if variable.keys is not None or variable.scope is Scope.THREAD:
            what = 0 if is_scalar(variable.type) else 1 if is_string(variable.type) else 2
            variable.number = len(self.keyed)
            self.keyed.append((max(8, -(-size // 8) * 8), what, variable.scope is Scope.THREAD,
                               sum(self.key_size(k) for k in variable.keys or ())))
        else:
            room = 8 + -(-size // 8) * 8  # a word before a string says whether it is NULL
            if variable.scope is Scope.LOCAL:
                variable.offset, self.locals_size = self.locals_size + 8, self.locals_size + room
            else:
                variable.offset, self.globals_size = self.globals_size + 8, self.globals_size + room

    def key_size(self, kind: Type) -> int:
        """The most that a key of a type takes."""
        if is_string(kind):
            return 8 + -(-self.string_size // 8) * 8
        return 8 if is_scalar(kind) else -(-self.size(kind) // 8) * 8

    def zeros(self, size: int) -> int:
        """The offset of so many zero bytes among the constants; what is larger is refused when the
        program is to run."""
        size = min(size, MAX_ZEROS)
        if self._zeros < size:
            self._zeros_at = len(self.strings)
            self.strings += bytes(size)
            self._zeros = size
        return self._zeros_at
