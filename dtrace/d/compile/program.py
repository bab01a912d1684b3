"""D programs from their text to functions: parsed whole, ``if`` rewritten, clause by clause
compiled, each for every probe description it has.

Which probes match a description is asked of nobody here: ``Compiler.read`` gives the descriptions,
one by one, and ``Compiler.clause`` is given what matched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dtrace.bpf.layout import Region
from dtrace.d.checks.checker import Checker
from dtrace.d.compile.clauses import ClauseCompiler, ClauseFunction
from dtrace.d.compile.storage import Storage
from dtrace.d.language import syntax
from dtrace.d.language.attributes import parse_attributes, parse_version
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import SINCE, KeyShape
from dtrace.d.language.lexer import Macros, Pragma, Token
from dtrace.d.language.options import Options
from dtrace.d.language.parser import Parser
from dtrace.d.language.sugar import Cutter, error_clause, has_if
from dtrace.d.language.surroundings import Surroundings
from dtrace.d.language.types import Universe
from emu.host.errors import KinstError

PARTS = ("provider", "module", "function", "name")
LIMITS = (64, 64, 192, 64)  # bytes of each part, with a NUL
MAX_PROBE = (1 << 32) - 1
OWN = ("BEGIN", "END", "ERROR")  # probes that interrupt nothing
MAX_REPEATED = 10_000  # statements that are compiled once more, for another description


@dataclass(frozen=True)
class ListedProbe:
    """:param number: its ID, as ``-l`` shows it.
    :param inlined: where an inline function is meant that is entered there, the numbers of its
        copies in the debug data.
    """

    number: int
    provider: str
    module: str
    function: str
    name: str
    inlined: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"


class KnownProbes(Protocol):
    """The probes of a system, as far as the compiler looks at them."""

    def numbered(self, number: int) -> ListedProbe | None:
        """The probe with an ID."""

    def provides(self, provider: str) -> bool:
        """Whether a provider has probes."""


NO_PROBE = "D_PDESC_ZERO"


@dataclass(frozen=True)
class Wanted:
    """A clause and one of its descriptions, of which somebody has to find the probes.

    :param parts: of the description; an empty one stands for any.
    """

    clause: syntax.Clause
    specifier: syntax.Specifier
    parts: tuple[str, str, str, str]


@dataclass(frozen=True)
class Matched:
    """The probes of a description.

    :param why: there are none, where more can be said; ``tag``: what dtrace(1) calls that.
    """

    probes: Sequence[ListedProbe]
    why: str = ""
    tag: str = NO_PROBE


@dataclass
class Compiled:
    """A clause and its probes.

    :param why: it has none, where more can be said.
    """

    function: ClauseFunction
    probes: Sequence[ListedProbe]
    why: str = ""


def split(text: str, last: str = "name") -> tuple[str, str, str, str]:
    """The parts of a probe description, which are filled from the right.

    :raises ValueError: saying what is wrong.
    """
    most = PARTS.index(last) + 1
    parts = text.split(":")
    if len(parts) > most:
        raise ValueError("Overspecified probe description")
    whole = [""] * (most - len(parts)) + parts + [""] * (len(PARTS) - most)
    for part, limit in zip(whole, LIMITS, strict=True):
        if len(part) >= limit:
            raise ValueError("File name too long")
    return whole[0], whole[1], whole[2], whole[3]


@dataclass
class Compiler:
    """Compiles the programs of one trace, which share their variables.

    :param options: ``#pragma D option`` sets them.
    :param frames: clauses end with ``stack()`` of so many; None: they do not.
    """

    probes: KnownProbes
    options: Options
    universe: Universe
    surroundings: Surroundings
    frames: int | None = None
    aggregations: list[KeyShape] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.checker = Checker(self.universe, self.surroundings)
        self._storage: Storage | None = None
        self._made = self._repeated = 0
        self._repeats: syntax.Clause | None = None  # what is repeated: the statements of one clause
        self._deferred: list[tuple[str, str, SourcePlace]] = []
        self._sugared = self._in_library = False

    @property
    def storage(self) -> Storage:
        if self._storage is None:
            self._storage = Storage(self.options.number("strsize"))
        return self._storage

    def place(self, content: bytes) -> int:
        """Put bytes among the constants; their address."""
        return Region.STRINGS.address + self.storage.content(content)

    def read(self, source: str, macros: Macros, *, string: bool = False, last: str = "name",
             check_arguments: bool = True) -> Iterator[Wanted]:
        """Read one program; what of it is to be compiled, in order.

        :param string: from the command line, not from a file.
        :param last: the part that a description's last word is (``-P`` ... ``-n``).
        :raises DError: for its first mistake.
        """
        clauses: list[syntax.Clause] = []
        useful = False

        def piece(node: syntax.Piece) -> None:
            nonlocal useful
            match node:
                case syntax.Clause():
                    for specifier in node.probes:
                        self._described(specifier, last)
                    clauses.append(node)
                case syntax.Declaration():
                    self.checker.declare(node)
                    return
                case syntax.Inline():
                    self.checker.define_inline(node)
                case syntax.Translator():
                    self.checker.define_translator(node)
            useful = True

        parser = Parser(source, macros, self.universe, self.checker.knows, self._pragma,
                        probes_only=string, string=string)
        parser.program(piece)
        end = SourcePlace(parser.lexer.line)
        self._left_over()
        self._unused(macros, end, check_arguments)
        if not useful:
            raise DError("D_EMPTY", "empty D program translation unit", end)
        for clause in self._whole(clauses, last):
            for specifier in clause.probes:
                yield Wanted(clause, specifier, self._described(specifier, last))

    def library(self, source: str) -> None:
        """Take in a library's declarations, inlines and translators.

        :raises DError: for its first mistake.
        """
        def piece(node: syntax.Piece) -> None:
            match node:
                case syntax.Declaration():
                    self.checker.declare(node)
                case syntax.Inline():
                    self.checker.define_inline(node)
                case syntax.Translator():
                    self.checker.define_translator(node)
                case _:
                    raise DError("D_PRAGMA_SCOPE", "a library has no clauses", node.place)

        self._in_library = True
        try:
            Parser(source, Macros([], {}), self.universe, self.checker.knows,
                   self._pragma).program(piece)
        finally:
            self._in_library = False

    def _unused(self, macros: Macros, end: SourcePlace, check: bool) -> None:
        last = len(macros.arguments) - 1
        if check and last > 0 and last not in macros.used:
            raise DError("D_MACRO_UNUSED", f"extraneous argument '{macros.arguments[last]}' "
                         f"(${last} is not referenced)", end)

    def _whole(self, clauses: list[syntax.Clause], last: str) -> list[syntax.Clause]:
        """Clauses with what the compiler adds, and without ``if``."""
        if self.frames is not None:
            for clause in clauses:
                if not all(split(s.text, last)[3] in OWN for s in clause.probes):
                    clause.statements.append(_stack(clause.place, self.frames))
        if any(has_if(clause) for clause in clauses):
            cutter = Cutter()
            cut: list[syntax.Clause] = []
            if not self._sugared:
                cut.append(error_clause())
                self._sugared = True
            for clause in clauses:
                if has_if(clause):
                    pieces = cutter.cut(clause)
                    pieces[0].body = clause.body
                    cut += pieces
                else:
                    cut.append(clause)
            clauses = cut
        return clauses

    def _described(self, specifier: syntax.Specifier, last: str) -> tuple[str, str, str, str]:
        """The parts of a description.

        :raises DError: when it is none.
        """
        if specifier.number is not None:
            if specifier.number > MAX_PROBE:
                raise DError("D_PDESC_INVAL", f"identifier {specifier.number} exceeds maximum "
                             "probe id", specifier.place)
            if last != "name":
                raise DError("D_PDESC_INVAL", f"probe identifier {specifier.number} not permitted "
                             f"when specifying {last}s", specifier.place)
            probe = self.probes.numbered(specifier.number)
            if probe is None:
                raise DError("D_PDESC_INVAL", f"invalid probe identifier {specifier.number}: "
                             "Unknown probe identifier", specifier.place)
            return probe.provider, probe.module, probe.function, probe.name
        try:
            return split(specifier.text, last)
        except ValueError as error:
            raise DError("D_PDESC_INVAL", f'invalid probe description "{specifier.text}": {error}',
                         specifier.place) from None

    def clause(self, wanted: Wanted, matched: Matched) -> Compiled:
        """Compile a clause for one of its descriptions.

        :raises DError: for its first mistake, or when nothing matches that must.
        """
        clause, specifier, probes = wanted.clause, wanted.specifier, matched.probes
        if specifier.number is not None:
            one = self.probes.numbered(specifier.number)
            probes = [one] if one is not None else []
        if not probes and not self.options.given("zdefs"):
            why = f": {matched.why}" * bool(matched.why)
            raise DError(matched.tag, f"probe description {':'.join(wanted.parts)} does not match "
                         f"any probes{why}", specifier.place)
        if specifier is not clause.probes[0]:
            if clause is not self._repeats:
                self._repeats, self._repeated = clause, 0
            self._repeated += len(clause.statements)
            if self._repeated > MAX_REPEATED:
                raise DError("D_UNKNOWN", f"more than {MAX_REPEATED} statements are repeated for "
                             "the other descriptions of a clause", specifier.place)
        copy = syntax.Clause(
            clause.place, [specifier],
            None if clause.predicate is None else syntax.clone(clause.predicate),
            [syntax.Do(s.place, syntax.clone(s.expression)) for s in clause.statements
             if isinstance(s, syntax.Do)], clause.bare, clause.hidden, clause.body)
        self.storage.string_size = self.options.number("strsize")
        compiler = ClauseCompiler(self.checker, self.storage, self.options, self.aggregations)
        self._made += 1
        self.checker.least = self.options.text("amin")
        self.surroundings.entered(probes)
        function = compiler.compile(copy, specifier, f"clause_{self._made}")
        return Compiled(function, probes, matched.why)

    # -- control lines -----------------------------------------------------------------------------

    def _pragma(self, line: Pragma) -> None:
        """``#pragma``, ``#ident`` and the like."""
        words = list(line.words)
        first = words.pop(0)
        if first.kind != "name":
            raise DError("D_PRAGCTL_INVAL", "invalid control directive", line.place)
        name = first.text
        if name == "pragma":
            if not words:
                return
            name = words.pop(0).text
            if name == "D":
                if not words:
                    return
                name = words.pop(0).text
                if name not in ("attributes", "binding", "depends_on", "error", "ident", "line",
                                "option"):
                    raise DError("D_PRAGMA_INVAL", f"invalid D pragma: {name}", line.place)
            elif name not in ("error", "ident", "line"):
                return
        elif name not in ("error", "ident", "line"):
            raise DError("D_PRAGCTL_INVAL", f"invalid control directive: #{name}", line.place)
        self._directive(name, words, line.place)

    def _directive(self, name: str, words: list[Token], place: SourcePlace) -> None:
        if name == "error":
            text = "".join(f"{_plain(w)} " for w in words if w.kind != "integer")
            raise DError("D_PRAGERR", f"#error: {text}", place)
        if name == "line":
            kinds = [w.kind for w in words]
            if kinds[:1] != ["integer"] or kinds[1:] not in ([], ["string"],
                                                             ["string", "integer"]):
                raise DError("D_PRAGMA_MALFORM",
                             'malformed #line <line> [ ["file"] state ]', place)
        elif name == "option":
            self._option(words, place)
        elif name in ("attributes", "binding", "depends_on"):
            self._dependency(name, words, place)

    def _option(self, words: list[Token], place: SourcePlace) -> None:
        if not words or words[0].kind != "name":
            raise DError("D_PRAGMA_MALFORM", "malformed #pragma option <option>=<val>", place)
        if len(words) > 1:
            raise DError(
                "D_PRAGMA_MALFORM", "superfluous arguments specified for #pragma option", place)
        name, mark, value = words[0].text.partition("=")
        try:
            self.options.set(name, value if mark else None, inside=True)
        except KinstError as error:
            to = f" to '{value}'" if mark else ""
            raise DError("D_PRAGMA_OPTSET", f"failed to set option '{name}'{to}: {error}",
                         place) from None
        if name == "version":
            given = _version(value)
            self.checker.hidden = frozenset(
                word for word, since in SINCE.items() if _version(since) > given)

    def _dependency(self, name: str, words: list[Token], place: SourcePlace) -> None:
        shape = {"attributes": "<attributes> <ident>", "binding": '"version" <ident>',
                 "depends_on": "<class> <name>"}[name]
        if len(words) < 2:
            raise DError("D_PRAGMA_MALFORM", f"malformed #pragma {name} {shape}", place)
        if name == "depends_on":
            kind, what = words[0].text, words[1].text
            if kind not in ("provider", "module", "library"):
                raise DError("D_PRAGMA_INVAL", f"invalid class {kind} specified by #pragma {name}",
                             place)
            if kind == "library" and self._in_library:
                return  # whoever reads libraries has seen to it
            if kind == "library":
                raise DError("D_PRAGMA_DEPEND",
                             "main program may not explicitly depend on a library", place)
            if kind == "provider" and not self.probes.provides(what):
                raise DError("D_PRAGMA_DEPEND", f"program requires provider {what}", place)
            return
        if name == "attributes":
            try:
                parse_attributes(words[0].text)
            except KinstError:
                raise DError("D_PRAGMA_INVAL", "invalid attributes specified by #pragma "
                             "attributes", place) from None
            if words[1].text == "provider":
                if len(words) < 4 or words[3].text not in (
                        "provider", "module", "function", "name", "args"):
                    part = words[3].text if len(words) > 3 else ""
                    raise DError(
                        "D_PRAGMA_INVAL", f'invalid component "{words[2].text}" in attribute '
                        f"#pragma for provider {part}", place)
                return
        elif words[0].kind != "string":
            raise DError("D_PRAGMA_MALFORM", f"malformed #pragma {name} {shape}", place)
        else:
            try:
                parse_version(words[0].content.decode("latin-1"))
            except KinstError:
                raise DError("D_PRAGMA_INVAL", "invalid version string specified by #pragma "
                             "binding", place) from None
        self._of_name(name, words[1].text, place)

    def _of_name(self, name: str, target: str, place: SourcePlace) -> None:
        """A pragma about a name, which is the program's own or still to come."""
        checker = self.checker
        if checker.knows(target):
            if not checker.owns(target):
                raise DError("D_PRAGMA_SCOPE", f"#pragma {name} cannot modify entity defined "
                             "outside program scope", place)
        else:
            self._deferred.append((name, target, place))

    def _left_over(self) -> None:
        deferred, self._deferred = self._deferred, []
        for name, target, place in deferred:
            if not self.checker.knows(target) and not (
                    target == "translator" and self.checker.translators):
                raise DError("D_PRAGMA_UNUSED", f"unused #pragma {name}", place)


def _stack(place: SourcePlace, frames: int) -> syntax.Statement:
    return syntax.Do(place, syntax.Call(
        place, syntax.Name(place, "stack"), [syntax.Number(place, frames)]))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _plain(word: Token) -> str:
    return word.content.decode("latin-1") if word.kind == "string" else word.text
