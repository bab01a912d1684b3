"""Random D programs, each from a seed.

The programs run in BEGIN, END, ERROR and timers, and print nothing that depends on the machine:
their output is the same wherever D means the same.  ``STATEMENTS`` and ``expressions.py`` are what
they are made of.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dtrace.judge.expressions import INTEGERS, Expressions, Scope
from dtrace.judge.memory import Memory
from dtrace.judge.program import Node

# A clause that every program has: it ends a program that no other clause ends.
LAST = "tick-1s\n{\n\texit(0);\n}\n"
LOCAL = "this->"  # begins the names of clause-local variables
SPECULATED = 9  # number of the variable that holds the ID of a speculation
DEPTH = 3  # maximum depth of an expression
CONVERSIONS = ("d", "i", "u", "x", "X", "o", "d", "x")
FLAGS = ("", "", "", "-", "+", " ", "0", "#", "-+", "'")
# Size letters of conversions, and the type of the argument that they need
LENGTHS = {"": "", "h": "short", "hh": "char", "l": "long", "ll": "long long"}
ENDS = 0.1  # part of the clauses that end tracing
WRONG = 0.01  # part of the conversions and aggregations that may be wrong
# Aggregating functions without further arguments
PLAIN = ("count", "sum", "min", "max", "avg", "stddev", "quantize")
LINEAR = ((0, 10, 1), (-10, 10, 5), (0, 100, 10), (-100, 1000, 100))
LOGARITHMIC = ((10, 0, 3, 10), (2, 0, 5, 2), (10, 2, 6, 20), (5, 1, 4, 25))


@dataclass(frozen=True)
class Aggregation:
    """An aggregation of the program: its function with fixed arguments, and the kinds of keys."""

    function: str
    arguments: str
    keys: tuple[str, ...]


@dataclass
class Writer:
    """A program in progress."""

    random: random.Random
    scope: Scope = field(default_factory=Scope)
    aggregations: dict[str, Aggregation] = field(default_factory=dict)
    aggregated: list[str] = field(default_factory=list)  # aggregations that have a value
    structures: list[str] = field(default_factory=list)  # variables of structure types

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.random, self.scope)
        self.memory = Memory(self.expressions)

    def integer(self) -> Node:
        """Return a random integer expression."""
        return self.expressions.integer(self.random.randrange(DEPTH + 1))

    def string(self) -> Node:
        """Return a random string expression."""
        return self.expressions.string(self.random.randrange(DEPTH))

    def aggregation(self) -> str | None:
        """Return the name of an aggregation that was assigned, or None if there is none."""
        names = list(self.aggregations) if self.random.random() < WRONG else self.aggregated
        return self.random.choice(names) if names else None

    def of(self, kind: str) -> Node:
        """Return a random expression of a kind."""
        return self.integer() if kind == "int" else self.string()


def _statement(*pieces: str | Node) -> Node:
    return Node("statement", ("\t", *pieces, "\n"), optional=True)


def _assign(w: Writer) -> Node:
    name = w.random.choice(list(w.scope.integers))
    return _statement(f"{name} {w.random.choice(('=', '=', '=', '+=', '-=', '*=', '|='))} ",
                      w.integer(), ";")


def _assign_string(w: Writer) -> Node:
    return _statement(f"{w.random.choice(w.scope.strings)} = ", w.string(), ";")


def _assign_element(w: Writer) -> Node:
    name = w.random.choice(list(w.scope.tables))
    return _statement(*w.expressions.place(name, 1), " = ", w.of(w.scope.tables[name][1]), ";")


def _trace(w: Writer) -> Node:
    return _statement("trace(", w.of(w.random.choice(("int", "string"))), ");")


def _print(w: Writer) -> Node:
    """Return a call of print(); the name of an operation's type depends on the kernel's numbers."""
    if w.random.random() < 0.3:
        return _statement("print(", w.string(), ");")
    return _statement(f"print(({w.random.choice(list(INTEGERS))})(", w.integer(), "));")


def _printf(w: Writer) -> Node:
    choose, formats, arguments = w.random, list[str](), list[str | Node]()
    for _ in range(choose.randrange(1, 4)):
        width = choose.choice(("", "", "", "1", "5", "12", "20"))
        flags = choose.choice(FLAGS)
        if choose.random() < 0.35:
            precision = choose.choice(("", "", ".0", ".2", ".10"))
            formats.append(f"%{flags.strip('+0# ').replace(chr(39), '')}{width}{precision}"
                           + choose.choice("ssssS"))
            arguments += [", ", w.string()]
        else:
            precision = choose.choice(("", "", "", ".0", ".3", ".12"))
            letter = choose.choice((*CONVERSIONS, "c"))
            if letter == "c":
                length, size = "", "char"
            else:
                length = choose.choice(("", "", "", "h", "l", "ll"))
                size = "unsigned " * (letter in "uxXo" and length != "") + LENGTHS[length]
            if choose.random() < WRONG:
                length = choose.choice(list(LENGTHS))
            formats.append(f"%{flags}{width}{precision}{length}{letter}")
            arguments += [", ", *((f"({size})(", w.integer(), ")") if size else (w.integer(),))]
    between = choose.choice((" ", ":", "%%", "\\t"))
    return _statement(f'printf("[{between.join(formats)}]\\n"', *arguments, ");")


def _aggregated(w: Writer, function: str) -> tuple[str | Node, ...]:
    """Return the argument of an aggregating function.

    FreeBSD's kernel panics if the argument of lquantize() is more than 2^31 - 1 above the base.
    """
    return (w.integer(),) if function != "lquantize" else ("(", w.integer(), ") % 1000")


def _aggregate(w: Writer) -> Node:
    name = w.random.choice(list(w.aggregations))
    w.aggregated.append(name)
    chosen = w.aggregations[name]
    keys: list[str | Node] = []
    for index, kind in enumerate(chosen.keys):
        # Keys of one size: FreeBSD may merge equal keys of different sizes.
        keys += [", (long)" if kind == "int" and index else "(long)" if kind == "int" else
                 ", " * bool(index), w.expressions.of(kind, 1)]
    place: tuple[str | Node, ...] = (f"{name}[", *keys, "]") if keys else (name,)
    given: tuple[str | Node, ...] = () if chosen.function == "count" else (
        *_aggregated(w, chosen.function), chosen.arguments)
    return _statement(*place, f" = {chosen.function}(", *given, ");")


def _printa(w: Writer) -> Node:
    name = w.aggregation()
    if name is None:
        return _aggregate(w)
    chosen = w.aggregations[name]
    if w.random.random() < 0.5:
        return _statement(f"printa({name});")
    keys = " ".join("%d" if kind == "int" else "%s" for kind in chosen.keys)
    others = [other for other in dict.fromkeys(w.aggregated)
              if other != name and w.aggregations[other].keys == chosen.keys]
    names = [name, *others[: w.random.randrange(2)]]
    values = " ".join(f"%@{w.random.choice(('d', 'u', 'x', '8d', '-8d'))}" for _name in names)
    return _statement(f'printa("{keys} {values}\\n", {", ".join(names)});')


def _change(w: Writer) -> Node:
    name = w.aggregation()
    if name is None:
        return _aggregate(w)
    # FreeBSD cannot print an llquantize() that was cleared.
    clear = f"trunc({name});" if w.aggregations[name].function == "llquantize" else (
        f"clear({name});")
    return _statement(w.random.choice((
        clear, f"trunc({name});", f"trunc({name}, {w.random.randrange(-3, 4)});",
        f"normalize({name}, {w.random.choice((1, 2, 3, 10, 1000, -1, -1000, '0x80000000'))});",
        f"denormalize({name});")))


def _member(w: Writer) -> Node:
    if not w.scope.members:
        return _assign(w)
    return _statement(f"{w.random.choice(w.scope.members)} = ", w.integer(), ";")


def _structure(w: Writer) -> Node:
    if not w.structures:
        return _print(w)
    name = w.random.choice(w.structures)
    if name == "x1":
        return _statement(w.random.choice(("print(x1);", "print(x1.n);", "print(x1.g);",
                                           "print(x1.h[1]);", "trace(x1);")))
    return _statement(w.random.choice((f"print({name});", f"trace({name});",
                                       f"tracemem(&{name}.a, 12);")))


def _if(w: Writer) -> Node:
    body = [_inner(w) for _ in range(w.random.randrange(1, 3))]
    pieces: list[str | Node] = ["if (", w.integer(), ") {\n", *body, "\t}"]
    if w.random.random() < 0.5:
        pieces += [" else {\n", _inner(w), "\t}"]
    return _statement(*pieces)


def _inner(w: Writer) -> Node:
    return w.random.choice((_assign, _assign_string, _printf, _trace, _aggregate))(w)


def _memory(w: Writer) -> Node:
    return w.memory.statement()


def _exit(w: Writer) -> Node:
    return _statement("exit(", w.integer() if w.random.random() < 0.3 else str(
        w.random.randrange(4)), ");")


# (weight, what writes the statement)
STATEMENTS: tuple[tuple[int, Callable[[Writer], Node]], ...] = (
    (6, _assign), (4, _assign_string), (3, _assign_element), (3, _trace), (1, _print),
    (8, _printf), (6, _aggregate), (2, _printa), (1, _change), (1, _if), (2, _member),
    (1, _structure), (2, _memory))


def generated(seed: int) -> Node:
    """Return the random program of a seed."""
    w = Writer(random.Random(seed))
    declared = _declarations(w)
    options = _options(w)
    clauses = [_clause(w, name) for name in _probes(w)]
    if w.random.random() < 0.1:
        clauses += _speculation(w)
    return Node("program", (*options, *declared, *clauses, LAST))


def _speculation(w: Writer) -> list[Node]:
    """Return clauses that speculate, and commit or discard what they have recorded."""
    number = f"v{SPECULATED}"
    ends = w.random.choice(("commit", "commit", "discard"))
    return [Node("clause", tuple(pieces), optional=True) for pieces in (
        ("BEGIN\n{\n", f"\t{number} = speculation();\n}}\n"),
        ("BEGIN\n{\n", f"\tspeculate({number});\n", _printf(w), _trace(w), "}\n"),
        ("BEGIN\n{\n", _assign(w), f"\t{ends}({number});\n}}\n"))]


def _options(w: Writer) -> list[Node]:
    choose, options = w.random, []
    if choose.random() < 0.8:
        options.append("quiet")
    options += [name for name in ("aggsortrev", "aggsortkey", "rawbytes", "aggpack", "aggzoom")
                if choose.random() < 0.04]
    if choose.random() < 0.05:
        options.append(choose.choice((
            "aggsortpos=1", "aggsortkeypos=1", "nspec=2", "aggsize=64k", "bufsize=1m",
            "switchrate=100ms", "aggrate=50ms", "statusrate=200ms")))
    if choose.random() < 0.05:
        # With short strings, FreeBSD has no room for an element with several long keys.
        several = any(keys.count("string") > 1 for keys, _value in w.scope.tables.values())
        size = choose.choice((64, 512) if several else (4, 8, 16, 64, 512))
        w.scope.joins = size > 64
        options.append(f"strsize={size}")
    return [Node("option", (f"#pragma D option {name}\n",), optional=True) for name in options]


def _declarations(w: Writer) -> list[Node]:
    choose, lines = w.random, list[str]()
    for index in range(choose.randrange(2, 6)):
        size = choose.choice(list(INTEGERS))
        before = choose.choice(("", "", "", "self ", "this ")) if index else ""
        name = f"{before.strip()}->v{index}" if before else f"v{index}"
        w.scope.integers[name] = size
        lines.append(f"{before}{size} v{index};\n")
    for index in range(choose.randrange(1, 3)):
        before = choose.choice(("", "", "self ", "this "))
        w.scope.strings.append(f"{before.strip()}->s{index}" if before else f"s{index}")
        lines.append(f"{before}string s{index};\n")
    for index in range(choose.randrange(1, 3)):
        keys = tuple(choose.choice(("int", "string")) for _ in range(choose.randrange(1, 4)))
        value = choose.choice(("int", "int", "string"))
        w.scope.tables[f"t{index}"] = keys, value
        size = choose.choice(list(INTEGERS)) if value == "int" else "string"
        # Keys of one declared type: a key of another integer type is converted.
        types = ", ".join("string" if key == "string" else choose.choice(("int", "long", "char"))
                          for key in keys)
        lines.append(f"{size} t{index}[{types}];\n")
    for index in range(choose.randrange(1, 4)):
        name, arguments = choose.choice(PLAIN), ""
        if choose.random() < 0.2:
            name = "lquantize"
            arguments = "".join(f", {value}" for value in choose.choice(LINEAR))
        elif choose.random() < 0.1:
            name = "llquantize"
            arguments = "".join(f", {value}" for value in choose.choice(LOGARITHMIC))
        if name.endswith("quantize") and choose.random() < 0.2:
            arguments += f", {choose.choice((1, 2, 1000, -3))}"
        keys = tuple(choose.choice(("int", "string")) for _ in range(choose.randrange(3)))
        w.aggregations[f"@a{index}" if index else "@"] = Aggregation(name, arguments, keys)
    if choose.random() < 0.5:
        lines += _types(w)
    if choose.random() < 0.25:
        lines.append(w.memory.declared())
    return [Node("declaration", (line,), optional=True) for line in lines]


def _types(w: Writer) -> list[str]:
    """Return declarations of an enumeration, a structure, inline names and a translator."""
    choose, scope, lines = w.random, w.scope, list[str]()
    if choose.random() < 0.7:
        lines.append(f"enum e0 {{ E0, E1 = {choose.randrange(-5, 300)}, E2 }};\n")
        scope.constants += ["E0", "E1", "E2"]
        scope.enumerations.append("enum e0")
    sizes = [choose.choice(list(INTEGERS)) for _ in range(4)]
    bits = choose.randrange(1, 32)
    lines.append(f"struct st0 {{ {sizes[0]} a; {sizes[1]} b; unsigned int c : {bits}; "
                 f"int d : {choose.randrange(1, 32)}; {sizes[2]} e[3]; {sizes[3]} f; }};\n"
                 "struct st0 x0;\n")
    lines.append(f"typedef {sizes[1]} ty0;\n"
                 "struct st1 { struct st0 n; "
                 f"union {{ ty0 l; char m[{choose.randrange(1, 9)}]; }} g; "
                 f"struct {{ {sizes[0]} i; ty0 j; }} h[2]; {sizes[2]} *k; }};\nstruct st1 x1;\n")
    w.structures += ["x0", "x0", "x1"]
    scope.members += ["x0.a", "x0.b", "x0.c", "x0.d", "x0.e[1]", "x0.f", "x1.n.c", "x1.g.l",
                      "x1.g.m[0]", "x1.h[1].j", f"(*(({sizes[2]} *)&x0.e[1]))"]
    scope.read += ["(&x1.n)->b", "(*(&x0.f))", "(&x1.h[0])[1].i", "(&x1.n)->d", "(*(x0.e + 2))",
                   "(&x0.e[2] - &x0.e[0])"]
    scope.sizes += ["sizeof (x0)", "sizeof (struct st0)", "offsetof(struct st0, f)",
                    "offsetof(struct st0, e)", "sizeof (x0.e)"]
    if choose.random() < 0.7:
        lines.append(f"inline {sizes[0]} I0 = {choose.randrange(1 << 20)};\n"
                     f"inline {sizes[1]} twice[{sizes[2]} x] = x + x + {choose.randrange(9)};\n")
        scope.constants.append("I0")
        scope.functions.append("twice")
    if choose.random() < 0.7:
        lines.append(f"struct out0 {{ {sizes[1]} a; {sizes[2]} b; }};\n"
                     f"translator struct out0 < int V > {{ a = V * {choose.randrange(9)}; "
                     "b = V >> 1; };\n")
        scope.translated["out0"] = ("a", "b")
    return lines


def _probes(w: Writer) -> list[str]:
    names = ["BEGIN"] * w.random.randrange(1, 4)
    names += ["END"] * (w.random.random() < 0.3) + ["tick-100ms"] * (w.random.random() < 0.15)
    return names + ["ERROR"] * (w.random.random() < 0.15)


def _clause(w: Writer, name: str) -> Node:
    choose = w.random
    weights = [weight for weight, _write in STATEMENTS]
    writers = [write for _weight, write in STATEMENTS]
    if name == "ERROR":
        body = [_statement('printf("fault %d\\n", arg4);')]
    else:
        # When a timer prints or changes an aggregation, the consumer may see it later.
        body = [_assign(w) if name.startswith("tick") and write in (_printa, _change) else write(w)
                for write in choose.choices(writers, weights, k=choose.randrange(1, 8))]
        if choose.random() < ENDS:
            body.append(_exit(w))  # after a second exit(), FreeBSD drops the clause's record
    predicate: tuple[str | Node, ...] = ()
    if choose.random() < 0.2:
        # A predicate is evaluated before the clause sets its own variables.
        shared = Expressions(choose, w.scope.without(LOCAL))
        predicate = (Node("predicate", ("/", shared.integer(choose.randrange(DEPTH)), "/\n"),
                          optional=True),)
    return Node("clause", (f"{name}\n", *predicate, "{\n", *_set_local(w, body), *body, "}\n"),
                optional=True)


def _set_local(w: Writer, body: list[Node]) -> Iterator[str]:
    """Yield statements that set the clause-local variables of a clause.

    Without them, such a variable has a value that an earlier firing has left.
    """
    used = "".join(statement.text for statement in body)
    for name in w.scope.integers:
        if name.startswith(LOCAL) and name in used:
            yield f"\t{name} = 0;\n"
    for name in w.scope.strings:
        if name.startswith(LOCAL) and name in used:
            yield f'\t{name} = "";\n'
