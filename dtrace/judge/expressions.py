"""Random expressions of D, whose values do not depend on the machine."""

import dataclasses
import functools
import random
from dataclasses import dataclass, field

from dtrace.judge.program import Node

# Names of integer types, with their size in bytes and whether they are signed.
INTEGERS = {
    "char": (1, True), "unsigned char": (1, False), "short": (2, True),
    "unsigned short": (2, False), "int": (4, True), "unsigned int": (4, False),
    "long": (8, True), "unsigned long": (8, False), "long long": (8, True),
    "unsigned long long": (8, False), "int8_t": (1, True), "uint8_t": (1, False),
    "int16_t": (2, True), "uint16_t": (2, False), "int32_t": (4, True), "uint32_t": (4, False),
    "int64_t": (8, True), "uint64_t": (8, False), "size_t": (8, False), "intptr_t": (8, True),
}
EDGES = sorted({sign * (1 << bits) + step for bits in (0, 3, 7, 8, 15, 16, 31, 32, 62)
                for step in (-1, 0, 1) for sign in (1, -1)})
FAR_EDGES = ("0x7fffffffffffffff", "0x8000000000000000", "0xffffffffffffffff",
             "9223372036854775807", "18446744073709551615ull")
STRINGS = ("", "a", "abc", "ABC", "a/b", "/usr//lib/../bin/ls", "/", ".", "..", "a b c", "-12",
           "0x1f", "077", "12abc", "key=value", "%d", "x,y,,z", "zz\\tz\\n", "\\\"q\\\"",
           "the quick brown fox jumps over the lazy dog")
BINARY = ("+", "-", "*", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "&&", "||",
          "^^")
UNARY = ("-", "~", "!", "+")
ASSIGN = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
# Operators whose result depends on the type of an operand, not only on its value
TYPED = ("/", "%", ">>", "<", "<=", ">", ">=")
COMPARE = ("==", "!=", "<", "<=", ">", ">=")
# Variables of the kernel that never change, whose values both tracers must read
KERNEL_INTEGERS = ("`hz", "`mp_ncpus", "`osreldate", "`tick", "`maxproc")
KERNEL_STRINGS = ("stringof(`ostype)", "stringof(`osrelease)", "stringof(`machine)")
# Texts for json() with paths that exist or not, and paths to values of other kinds
JSON = ((r'{\"a\": 1, \"b\": [true, -2.5e3, \"x\"], \"c\": {\"d\": null, \"e\": {\"f\": \"g\"}}}',
         ("a", "b", "b[0]", "b[1]", "b[2]", "b[3]", "c", "c.d", "c.e.f", "c.e.g", "z")),
        (r'[[1, 2], {\"k\": \"v\\u0041\\n\"}, []]', ("[0]", "[0][1]", "[1].k", "[2]", "[2][0]")))
SWAPS = (("htons", "uint16_t"), ("ntohs", "uint16_t"), ("htonl", "uint32_t"),
         ("ntohl", "uint32_t"), ("htonll", "uint64_t"), ("ntohll", "uint64_t"))


@dataclass
class Scope:
    """Names that a program has declared, by what they hold.

    :ivar integers: integer variable -> its type.
    :ivar strings: names of string variables.
    :ivar tables: associative array -> (kinds of its keys, kind of its values).
    :ivar constants: names of enumerators and inline constants.
    :ivar enumerations: types such as ``enum e0``.
    :ivar members: members of structures, such as ``x0.a``.
    :ivar read: members by pointers, such as ``(&x0)->a``, some of which D does not let a program
        write.
    :ivar functions: names of inline functions with an integer parameter, such as ``twice``.
    :ivar translated: translators: name of the result's structure -> its members.
    :ivar sizes: operands of ``sizeof`` and calls of ``offsetof()``.
    :ivar joins: whether strjoin() and cleanpath() may be called.  In FreeBSD, the value of
        strjoin() is undefined if the string and its final zero have exactly the maximum size, and
        cleanpath() leaves out the last bytes of long strings, so small sizes exclude them.
    """

    integers: dict[str, str] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)
    tables: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    enumerations: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    translated: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: list[str] = field(default_factory=list)
    joins: bool = True

    def without(self, prefix: str) -> "Scope":
        """Return the scope without the variables whose names begin with a text.

        There is always an integer variable left.
        """
        integers = {name: size for name, size in self.integers.items()
                    if not name.startswith(prefix)}
        strings = [name for name in self.strings if not name.startswith(prefix)]
        return dataclasses.replace(self, integers=integers, strings=strings)


class Expressions:
    """Generator of expressions.

    :param random: source of randomness.
    :param scope: names that expressions may use.
    """

    def __init__(self, source: random.Random, scope: Scope) -> None:
        self.random, self.scope = source, scope

    def of(self, kind: str, depth: int) -> Node:
        """Return a random expression of a kind, ``int`` or ``string``."""
        return self.integer(depth) if kind == "int" else self.string(depth)

    def integer(self, depth: int) -> Node:
        """Return a random expression with an integer value."""
        choose = self.random
        if depth <= 0 or choose.random() < 0.15:
            return Node("int", (self._leaf(),))
        deeper = depth - 1
        one, other = functools.partial(self.integer, deeper), functools.partial(self.string, deeper)
        form = choose.choice((
            "unary", "binary", "binary", "binary", "divide", "conditional", "cast", "length",
            "index", "number", "compare", "size", "swap", "table", "assign", "step", "member",
            "inline", "translated", "typed", "typed"))
        pieces: tuple[str | Node, ...]
        if form == "unary":
            pieces = (f"{choose.choice(UNARY)}(", one(), ")")
        elif form == "binary":
            pieces = ("(", one(), f" {choose.choice(BINARY)} ", one(), ")")
        elif form == "divide":
            # Most divisors are odd, so that most programs do not end with a fault.
            safe = choose.random() < 0.95
            pieces = ("(", one(), f" {choose.choice('/%')} (", one(), " | 1))" if safe else "))")
        elif form == "conditional":
            pieces = ("(", one(), " ? ", one(), " : ", one(), ")")
        elif form == "cast":
            pieces = self._cast(deeper)
        elif form == "typed":
            operator, size = choose.choice(TYPED), choose.choice(list(INTEGERS))
            pieces = ("((", *self._typed(deeper),
                      f") {operator} ({size}){choose.choice((1, 2, 3, 10, 31, 255))})")
        elif form == "length":
            pieces = ("strlen(", other(), ")")
        elif form == "index":
            name = choose.choice(("index", "rindex"))
            more = choose.random() < 0.4
            pieces = (f"{name}(", other(), ", ", other(), *((", ", one()) if more else ()), ")")
        elif form == "number":
            base = choose.choice(("", "", ", 10", ", 16", ", 8", ", 2", ", 36"))
            pieces = ("strtoll(", other(), f"{base})")
        elif form == "compare":
            pieces = ("(", other(), f" {choose.choice(COMPARE)} ", other(), ")")
        elif form == "size":
            pieces = (choose.choice((f"sizeof ({choose.choice(list(INTEGERS))})",
                                     "sizeof (struct timespec)", *self.scope.sizes)),)
        elif form == "swap":
            name, size = choose.choice(SWAPS)
            pieces = (f"{name}(({size})", one(), ")")
        elif form == "table":
            return self._element("int", deeper)
        elif form == "member" and self.scope.members:
            pieces = (choose.choice(self.scope.members + self.scope.read),)
        elif form == "inline" and self.scope.functions:
            pieces = (f"{choose.choice(self.scope.functions)}[", self._argument(deeper), "]")
        elif form == "translated" and self.scope.translated:
            name = choose.choice(list(self.scope.translated))
            member = choose.choice(self.scope.translated[name])
            pieces = (f"(xlate <struct {name}> ((int)", one(), f")).{member}")
        elif form == "assign":
            name, operator = self._variable(), choose.choice(ASSIGN)
            safe = operator in ("/=", "%=") and choose.random() < 0.9
            pieces = (f"({name} {operator} ", "(" * safe, one(), " | 1)" * safe, ")")
        else:
            name = self._variable()
            pieces = (choose.choice((f"{name}++", f"{name}--", f"++{name}", f"--{name}")),)
        return Node("int", pieces)

    def _cast(self, depth: int) -> tuple[str | Node, ...]:
        """Return the pieces of a value that is converted to a random type."""
        enumerated = self.scope.enumerations and self.random.random() < 0.2
        size = self.random.choice(self.scope.enumerations if enumerated else list(INTEGERS))
        return f"({size})(", self.integer(depth), ")"

    def _typed(self, depth: int) -> tuple[str | Node, ...]:
        """Return the pieces of a value whose type is often not that of its parts."""
        choose, scope = self.random, self.scope
        form = choose.choice(("cast", "conditional", "conditional", "constant", "member", "inline"))
        if form == "conditional":
            return ("(", self.integer(depth - 1), " ? ", *self._cast(depth - 1), " : ",
                    *self._cast(depth - 1), ")")
        if form == "constant" and scope.constants:
            return (choose.choice(scope.constants),)
        if form == "member" and scope.members:
            return (choose.choice(scope.members),)
        if form == "inline" and scope.functions:
            return f"{choose.choice(scope.functions)}[", self._argument(depth), "]"
        return self._cast(depth)

    def _argument(self, depth: int) -> Node:
        """Return an argument of an inline function.

        It calls no inline function: FreeBSD's dtrace(1) compiles ``f[f[1]]`` into code that reads
        registers which were never set.
        """
        names, self.scope.functions = self.scope.functions, []
        argument = self.integer(depth)
        self.scope.functions = names
        return argument

    def string(self, depth: int) -> Node:
        """Return a random expression with a string value."""
        choose = self.random
        if depth <= 0 or choose.random() < 0.25:
            if self.scope.strings and choose.random() < 0.4:
                return Node("string", (choose.choice(self.scope.strings),))
            if choose.random() < 0.03:
                return Node("string", (choose.choice(KERNEL_STRINGS),))
            return Node("string", (f'"{choose.choice(STRINGS)}"',))
        deeper = depth - 1
        one, other = functools.partial(self.integer, deeper), functools.partial(self.string, deeper)
        form = choose.choice(("join", "part", "token", "path", "digits", "case", "search",
                              "conditional", "table", "json"))
        pieces: tuple[str | Node, ...]
        if form in ("join", "token") and not self.scope.joins:
            return self.string(0)
        if form == "join":
            pieces = ("strjoin(", other(), ", ", other(), ")")
        elif form == "part":
            more = (", ", one()) if choose.random() < 0.6 else ()
            pieces = ("substr(", other(), ", ", one(), *more, ")")
        elif form == "token":
            # After strtok() of a null pointer, FreeBSD's dtrace(1) searches up to a limit that
            # nobody has set; strjoin() faults instead.
            pieces = ('strtok(strjoin(', other(), ', ""), ', other(), ")")
        elif form == "path":
            names = ("basename", "dirname", *("cleanpath",) * self.scope.joins)
            pieces = (f"{choose.choice(names)}(", other(), ")")
        elif form == "digits":
            base = choose.choice(("", "", ", 10", ", 16", ", 8", ", 2", ", 36"))
            pieces = ("lltostr(", one(), f"{base})")
        elif form == "case":
            pieces = (f"{choose.choice(('toupper', 'tolower'))}(", other(), ")")
        elif form == "search":
            if choose.random() < 0.5:
                pieces = ("strstr(", other(), ", ", other(), ")")
            else:
                letter = choose.choice(("'a'", "'/'", "'='", "'\\0'", "32"))
                name = choose.choice(("strchr", "strrchr"))
                pieces = (f"{name}(", other(), f", {letter})")
        elif form == "conditional":
            pieces = ("(", one(), " ? ", other(), " : ", other(), ")")
        elif form == "json":
            text, paths = choose.choice(JSON)
            pieces = (f'json("{text}", "{choose.choice(paths)}")',)
        else:
            return self._element("string", deeper)
        return Node("string", pieces)

    def _element(self, kind: str, depth: int) -> Node:
        """Return an element of an associative array, or a leaf if there is no such array."""
        names = [name for name, (_keys, value) in self.scope.tables.items() if value == kind]
        if not names:
            return self.of(kind, 0)
        name = self.random.choice(names)
        return Node(kind, (*self.place(name, depth),))

    def place(self, name: str, depth: int) -> tuple[str | Node, ...]:
        """Return the pieces of ``name[keys]``."""
        pieces: list[str | Node] = [f"{name}["]
        for index, key in enumerate(self.scope.tables[name][0]):
            pieces += [", "] * bool(index) + [self.of(key, min(depth, 1))]
        return (*pieces, "]")

    def _variable(self) -> str:
        return self.random.choice(list(self.scope.integers))

    def _leaf(self) -> str:
        choose = self.random
        form = choose.random()
        if form < 0.4:
            return self._variable()
        if form < 0.7:
            return self.literal()
        if form < 0.8:
            return choose.choice(FAR_EDGES)
        if form < 0.85 and self.scope.constants:
            return choose.choice(self.scope.constants)
        if form < 0.86:
            return choose.choice(KERNEL_INTEGERS)
        if form < 0.9:
            return choose.choice(("'a'", "'\\n'", "'\\0'", "'ab'", "'\\x41'", "'\\101'"))
        return str(choose.randrange(20))

    def literal(self) -> str:
        """Return an integer constant at the edge of a type."""
        choose = self.random
        value = choose.choice(EDGES)
        size = abs(value)
        text = choose.choice((str(size), str(size), hex(size), f"0{size:o}"))
        text += choose.choice(("", "", "", "", "u", "l", "ul", "ull", "ll"))
        return f"(-{text})" if value < 0 else text
