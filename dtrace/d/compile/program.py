"""Compilation of D programs from source text to BPF functions.

A program is parsed as a whole, ``if`` statements are rewritten, and each clause is compiled once
for each of its probe descriptions.  This module does not match descriptions with probes:
``Compiler.read`` yields the descriptions, and ``Compiler.clause`` receives the matching probes.
"""

from abc import abstractmethod
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
from dwarf.types import declare
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError

PARTS = ("provider", "module", "function", "name")
# maximum size in bytes of each part of a probe description, including a NUL
LIMITS = (64, 64, 192, 64)
MAX_PROBE = (1 << 32) - 1
OWN = ("BEGIN", "END", "ERROR")  # probes that have no stack because they interrupt nothing
# Maximum number of statements compiled for the second and later probe descriptions of a clause.
MAX_REPEATED = 10_000


@dataclass(frozen=True)
class ListedProbe:
    """A probe in the list that ``-l`` prints, or one of several places that are one probe there.

    :param number: identifies the probe, or the place.
    :param inlined: for the entry of an inline function, the numbers of its inline copies in the
        debug data.
    :param promised: stability attributes that a program declares for the provider (``PROMISES`` of
        dtrace/d/language/attributes.py); empty: those of other providers.
    :param first: number of the first of several places that are one probe; None: this one.
    """

    number: int
    provider: str
    module: str
    function: str
    name: str
    inlined: tuple[int, ...] = ()
    promised: tuple[str, ...] = ()
    first: int | None = None

    @property
    def id(self) -> int:
        """The ID that dtrace(1) prints: all places where a function returns share one."""
        return self.number if self.first is None else self.first

    @property
    def text(self) -> str:
        """The probe's full name: provider, module, function and name, separated by colons."""
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"


class ManyProbes(Sequence[ListedProbe]):
    """Probes of single instructions, whose objects are made on access: there may be millions.

    Each has an ID of its own, and none is one of DTrace's own probes.
    """

    @property
    @abstractmethod
    def numbers(self) -> Sequence[int]:
        """Their numbers, in ascending order."""

    @abstractmethod
    def runs(self) -> Iterator[tuple[Symbol, int, list[int]]]:
        """Yield (function, index of the first, offsets) for the probes of each function."""


def counted_once(probes: Sequence[ListedProbe]) -> int:
    """Return the number of probes without further places of the same probe."""
    return len(probes) if isinstance(probes, ManyProbes) else len({probe.id for probe in probes})


def singly(probes: Sequence[ListedProbe]) -> Sequence[ListedProbe]:
    """Return the probes among which DTrace's own may be."""
    return () if isinstance(probes, ManyProbes) else probes


class KnownProbes(Protocol):
    """Interface through which the compiler asks about the probes of a system."""

    def numbered(self, number: int) -> Sequence[ListedProbe]:
        """Return the probe with an ID, as all of its places, or nothing if there is none."""

    def provides(self, provider: str) -> bool:
        """Return whether a provider has probes."""


NO_PROBE = "D_PDESC_ZERO"


@dataclass(frozen=True)
class Wanted:
    """A clause and one of its probe descriptions, for which matching probes are needed.

    :param parts: parts of the description; an empty part matches anything.
    """

    clause: syntax.Clause
    specifier: syntax.Specifier
    parts: tuple[str, str, str, str]


@dataclass(frozen=True)
class Matched:
    """The probes that match a description.

    :param why: reason why no probes match, if it is known.
    :param tag: tag of this error in dtrace(1).
    """

    probes: Sequence[ListedProbe]
    why: str = ""
    tag: str = NO_PROBE


@dataclass
class Compiled:
    """A compiled clause and its probes.

    :param why: reason why it has no probes, if it is known.
    """

    function: ClauseFunction
    probes: Sequence[ListedProbe]
    why: str = ""


def _shape(probe: syntax.ProbeDeclaration) -> tuple[str, list[str]]:
    """Return the name of a probe and the types of its arguments."""
    return probe.name, [declare(kind) for kind in probe.seen]


def split(text: str, last: str = "name") -> tuple[str, str, str, str]:
    """Split a probe description into provider, module, function and name.

    The parts are filled from the right; missing parts are empty.

    :param last: the part that the last word is.
    :raises ValueError: with the reason, if there are too many parts or a part is too long.
    """
    count = PARTS.index(last) + 1
    parts = text.split(":")
    if len(parts) > count:
        raise ValueError("Overspecified probe description")
    padded = [""] * (count - len(parts)) + parts + [""] * (len(PARTS) - count)
    for part, limit in zip(padded, LIMITS, strict=True):
        if len(part) >= limit:
            raise ValueError("File name too long")
    return padded[0], padded[1], padded[2], padded[3]


@dataclass
class Compiler:
    """Compiler for all programs of one trace; the programs share their variables.

    :param options: options, which ``#pragma D option`` changes.
    :param frames: append ``stack()`` with this number of frames to clauses; None appends nothing.
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
        # the clause for which ``_repeated`` counts compiled statements
        self._repeats: syntax.Clause | None = None
        self._deferred: list[tuple[str, str, SourcePlace]] = []
        self._sugared = self._in_library = False
        self.providers: dict[str, syntax.ProviderDeclaration] = {}  # declared by the programs
        # provider -> its parts -> the attributes that pragmas give to them
        self._promised: dict[str, dict[str, str]] = {}

    @property
    def storage(self) -> Storage:
        """The memory layout of the programs' variables and constants."""
        if self._storage is None:
            self._storage = Storage(self.options.number("strsize"))
        return self._storage

    def place(self, content: bytes) -> int:
        """Add bytes to the constants and return their address."""
        return Region.STRINGS.address + self.storage.content(content)

    def read(self, source: str, macros: Macros, *, string: bool = False, last: str = "name",
             check_arguments: bool = True) -> Iterator[Wanted]:
        """Read one program and yield each clause, once for each of the clause's probe descriptions.

        :param string: whether the program comes from the command line, not from a file.
        :param last: the part that a description's last word is (``-P`` ... ``-n``).
        :param check_arguments: whether an unused macro argument is an error.
        :raises DError: for the first error in the program.
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
                case syntax.ProviderDeclaration():
                    self._declare_provider(node)
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

    def _declare_provider(self, node: syntax.ProviderDeclaration) -> None:
        before = self.providers.get(node.name)
        if before is not None and [_shape(one) for one in before.probes] != [
                _shape(one) for one in node.probes]:
            raise DError("D_PROV_INCOMPAT", "provider interface mismatch: "
                         f"{node.name} was declared with other probes", node.place)
        node.attributes = self._promised.setdefault(node.name, {})
        self.providers[node.name] = node

    def library(self, source: str) -> None:
        """Compile the declarations, inlines and translators of a library.

        :raises DError: for the first error in the library.
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
                    raise DError("D_PRAGMA_SCOPE", "a library cannot contain clauses", node.place)

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
        """Append ``stack()`` if requested, rewrite ``if`` statements, and return the clauses."""
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
        """Return the parts of a probe description.

        :raises DError: if the description is not valid.
        """
        if specifier.number is not None:
            if specifier.number > MAX_PROBE:
                raise DError("D_PDESC_INVAL", f"identifier {specifier.number} exceeds maximum "
                             "probe id", specifier.place)
            if last != "name":
                raise DError("D_PDESC_INVAL", f"probe identifier {specifier.number} not permitted "
                             f"when specifying {last}s", specifier.place)
            found = self.probes.numbered(specifier.number)
            if not found:
                raise DError("D_PDESC_INVAL", f"invalid probe identifier {specifier.number}: "
                             "Unknown probe identifier", specifier.place)
            return found[0].provider, found[0].module, found[0].function, found[0].name
        try:
            return split(specifier.text, last)
        except ValueError as error:
            raise DError("D_PDESC_INVAL", f'invalid probe description "{specifier.text}": {error}',
                         specifier.place) from None

    def clause(self, wanted: Wanted, matched: Matched) -> Compiled:
        """Compile a clause for one of its probe descriptions.

        :raises DError: for the first error in the clause, or if no probes match and the ``zdefs``
            option is not set.
        """
        clause, specifier, probes = wanted.clause, wanted.specifier, matched.probes
        if specifier.number is not None:
            probes = list(self.probes.numbered(specifier.number))
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
                             "the additional probe descriptions of a clause", specifier.place)
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
        """Process a control line, such as ``#pragma`` or ``#ident``."""
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
                return  # the caller has sorted the libraries by dependency
            if kind == "library":
                raise DError("D_PRAGMA_DEPEND",
                             "main program may not explicitly depend on a library", place)
            if kind == "provider" and not self.probes.provides(what):
                raise DError("D_PRAGMA_DEPEND", f"program requires provider {what}", place)
            return
        if name == "attributes":
            try:
                attributes = parse_attributes(words[0].text)
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
                self._promised.setdefault(words[2].text, {})[words[3].text] = attributes
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
        """Process a pragma about a name, which may be defined before or after the pragma."""
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
