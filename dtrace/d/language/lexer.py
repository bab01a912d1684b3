"""Tokens of D (DTrace guide, "Program structure", "Types, operators, and expressions").

The lexer has two modes: between clauses (probe descriptions and declarations), and in expressions.
The parser chooses the mode before it asks for a token.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dtrace.calls.strings import unescape_c
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.options import Options

MAX_SOURCE = 1 << 22  # maximum length of a program in characters
MAX_ARGUMENT = 1 << 16
INTEGER_MAX = (1 << 64) - 1
MAX_DIGITS = 22  # maximum number of digits of a 64-bit integer (in octal)

KEYWORDS = frozenset(
    "auto break case char const continue counter default do double else enum extern float for goto "
    "if import inline int long offsetof probe provider register restrict return self short signed "
    "sizeof static string stringof struct switch this translator typedef union unsigned userland "
    "void volatile while xlate".split())
# Keywords that begin a declaration between clauses; any other word begins a probe description.
BETWEEN = frozenset(
    "auto char const counter double enum extern float import inline int long provider register "
    "restrict self short signed static string struct this translator typedef union unsigned void "
    "volatile".split())
MEMBER_NAMES = frozenset("probe provider self string stringof userland xlate translator".split())

BLANKS = re.compile(r"[ \t\v\f\r\n]+")
WORD = re.compile(r"[A-Za-z_][0-9A-Za-z_]*")
SCOPED = re.compile(r"((?:[A-Za-z_][-0-9A-Za-z_.]*|[A-Za-z_]?)`)?([A-Za-z_][0-9A-Za-z_]*)")
AGGREGATION = re.compile(r"@(?:[A-Za-z_][0-9A-Za-z_]*)?")
NUMBER_BEGINS = re.compile(r"\.?[0-9]")
NUMBER = re.compile(r"(?:0[xX][0-9A-Fa-f]+|[0-9]+)[uU]?[lL]?[lL]?")
DIGITS = re.compile(r"0[xX][0-9A-Fa-f]+|[0-9]+")
FLOAT = re.compile(r"[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+[fFlL]?|[0-9]*\.[0-9]+|[0-9]+\.[0-9]*")
STRING = re.compile(r'"((?:[^"\\\n]|\\[^\n]|\\\n)*)("?)')
CHARACTER = re.compile(r"'((?:[^'\\\n]|\\[^\n])*)('?)")
MACRO = re.compile(r"\$\$?(?:[0-9]+|[A-Za-z_][0-9A-Za-z_]*)")
DESCRIPTION = re.compile(r"[-$:A-Za-z_.?*\\\[\]!][-$:0-9A-Za-z_.`?*\\\[\]!@+]*")
PUNCTUATION = re.compile(
    r"<<=|>>=|\.\.\.|&&|\^\^|\|\||==|!=|<=|>=|<<|>>|\+=|-=|\*=|/=|%=|&=|\^=|\|=|\+\+|--|->"
    r"|[-+*/%&|^~!<>=?:.,;(){}\[\]]")
PREDICATE_END = re.compile(r"/[ \t\v\f\r\n]*(?=[{;]|\Z)")
LINE_MARKER = re.compile(r'(?:line)?[ \t]*([0-9]+)[ \t]*(?:"([^"]*)")?.*')


class Token(NamedTuple):
    """A token of a D program.

    :param kind: "name", "keyword", "integer", "string", "aggregation", "description",
        "punctuation", "predicate end" or "end".
    :param value: value of an integer.
    :param suffix: suffix of an integer, such as "ul".
    :param content: content of a string, with the escapes resolved.
    """

    kind: str
    text: str
    place: SourcePlace
    value: int = 0
    suffix: str = ""
    decimal: bool = True
    content: bytes = b""


@dataclass
class Macros:
    """Values of macros (``$1``, ``$target`` and so on).

    :param arguments: ``$0`` (the script's name), ``$1``, ...
    :param variables: values of ``pid``, ``target``, ... by name.
    :param options: with ``defaultargs``, which the program itself may set, a missing argument is 0
        or "".
    :param used: numbers of the arguments that the program has used.
    """

    arguments: Sequence[str] = ("",)
    variables: Mapping[str, int] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    used: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Pragma:
    """A control line, split into tokens."""

    words: tuple[Token, ...]
    place: SourcePlace


class Lexer:
    """Lexer that splits the source of a D program into tokens.

    :param is_type: predicate: whether a word names a type rather than a probe.
    :param pragma: callback for each pragma.
    :param probes_only: whether every word between clauses is a probe description (``-n`` and the
        like).
    """

    def __init__(self, source: str, macros: Macros, is_type: Callable[[str], bool],
                 pragma: Callable[[Pragma], None], probes_only: bool = False) -> None:
        if len(source) > MAX_SOURCE:
            raise DError("D_SYNTAX", f"program is longer than {MAX_SOURCE} characters",
                         SourcePlace(1))
        self.source, self.macros, self.is_type = source, macros, is_type
        self.pragma, self.probes_only = pragma, probes_only
        self.at, self.line, self._line_start = 0, 1, 0
        if source.startswith("#!"):
            self.at = source.find("\n") if "\n" in source else len(source)

    # -- places ------------------------------------------------------------------------------------

    def place(self) -> SourcePlace:
        """Return the current position."""
        return SourcePlace(self.line, self.at - self._line_start + 1)

    def fail(self, tag: str, text: str) -> DError:
        """Return an error at the current position."""
        return DError(tag, text, self.place())

    def _advance(self, end: int) -> None:
        newlines = self.source.count("\n", self.at, end)
        if newlines:
            self.line += newlines
            self._line_start = self.source.rfind("\n", self.at, end) + 1
        self.at = end

    def _skip(self) -> None:
        """Skip blanks, comments and control lines."""
        source = self.source
        while self.at < len(source):
            blank = BLANKS.match(source, self.at)
            if blank:
                self._advance(blank.end())
            elif source.startswith("/*", self.at):
                self._comment()
            elif source.startswith("\\\n", self.at):
                self._advance(self.at + 2)
            elif source[self.at] == "#" and not source[self._line_start : self.at].strip():
                self._control_line()
            else:
                return

    def _comment(self) -> None:
        end = self.source.find("*/", self.at + 2)
        inner = self.source.find("/*", self.at + 2, end if end >= 0 else len(self.source))
        if inner >= 0:
            self._advance(inner)
            raise self.fail("D_SYNTAX", "/* encountered inside a comment")
        if end < 0:
            self._advance(len(self.source))
            raise self.fail("D_SYNTAX", "end-of-file encountered before matching */")
        self._advance(end + 2)

    def _control_line(self) -> None:
        end = self.source.find("\n", self.at)
        if end < 0:
            raise self.fail("D_SYNTAX", "end-of-file encountered before end of control line")
        text = self.source[self.at + 1 : end]
        place = self.place()
        stripped = text.strip()
        marker = LINE_MARKER.fullmatch(stripped)
        if stripped and marker and not stripped.startswith("pragma"):
            self._advance(end + 1)
            self.line = int(marker[1][:9])
            return
        words = tuple(self._control_words(text, place))
        self._advance(end + 1)
        if words:
            self.pragma(Pragma(words, place))

    def _control_words(self, text: str, place: SourcePlace) -> list[Token]:
        words, at = [], 0
        while at < len(text):
            if text[at] in " \t\v\f\r":
                at += 1
                continue
            string = STRING.match(text, at)
            number = NUMBER.match(text, at)
            where = SourcePlace(place.line, place.column + 1 + at)
            if string:
                if not string[2]:
                    raise DError("D_STR_NL", "newline encountered in string literal", where)
                words.append(Token("string", string[0], where, content=unescape_c(string[1])))
                at = string.end()
            elif number and (number.end() == len(text) or text[number.end()] in " \t\v\f\r"):
                words.append(self._integer(number[0], where))
                at = number.end()
            else:
                end = at
                while end < len(text) and text[end] not in ' \t\v\f\r"':
                    end += 1
                words.append(Token("name", text[at:end], where))
                at = end
        return words

    # -- tokens ------------------------------------------------------------------------------------

    def between(self) -> Token:
        """Return the next token of the text between clauses."""
        self._skip()
        place, source = self.place(), self.source
        if self.at >= len(source):
            return Token("end", "", place)
        word = WORD.match(source, self.at)
        found = DESCRIPTION.match(source, self.at)
        if word and word[0] in BETWEEN and (not found or found.end() == word.end() or (
                source[word.end()] == "*" and not self.probes_only)):
            self._advance(word.end())
            return Token("keyword", word[0], place)
        number = DIGITS.match(source, self.at)
        if number:
            integer = NUMBER.match(source, self.at)
            assert integer is not None
            token = self._integer(integer[0], place)
            self._advance(integer.end())
            return token
        if found:
            text = found[0]
            if not self.probes_only and ":" not in text:
                stem = text.partition("*")[0] if text.find("*") > 0 else text
                if self.is_type(stem):
                    self._advance(self.at + len(stem))
                    return Token("name", stem, place)
            self._advance(found.end())
            return Token("description", self._expanded(text, place), place)
        character = source[self.at]
        if character in "/,{};":
            self._advance(self.at + 1)
            return Token("punctuation", character, place)
        raise self.fail("D_SYNTAX", f'syntax error near "{character}"')

    def _expanded(self, text: str, place: SourcePlace) -> str:
        """Replace the macros in a probe description."""
        def value(match: re.Match[str]) -> str:
            name = match[0].lstrip("$")
            if name.isdigit():
                return self._argument(name, match[0], place) or ""
            if name not in self.macros.variables:
                raise DError("D_MACRO_UNDEF", f"macro variable {match[0]} is not defined", place)
            return str(self.macros.variables[name])
        return MACRO.sub(value, text)

    def expression(self) -> Token:
        """Return the next token of a declaration, predicate or action."""
        self._skip()
        place, source, at = self.place(), self.source, self.at
        if at >= len(source):
            return Token("end", "", place)
        character = source[at]
        if character == "$":
            macro = MACRO.match(source, at)
            if macro is None:
                raise self.fail("D_SYNTAX", 'syntax error near "$"')
            self._advance(macro.end())
            return self._macro(macro[0], place)
        if character == '"':
            return self._string(place)
        if character == "'":
            return self._character(place)
        if character == "@":
            found = AGGREGATION.match(source, at)
            assert found is not None
            self._advance(found.end())
            return Token("aggregation", found[0] if len(found[0]) > 1 else "@_", place)
        if NUMBER_BEGINS.match(source, at):
            real = FLOAT.match(source, at)
            if real and not source.startswith("...", real.end() - 1):
                raise self.fail("D_SYNTAX", "floating-point constants are not permitted")
            number = NUMBER.match(source, at)
            assert number is not None
            token = self._integer(number[0], place)
            self._advance(number.end())
            return token
        scoped = SCOPED.match(source, at)
        if scoped:
            self._advance(scoped.end())
            text = scoped[0]
            return Token("keyword" if text in KEYWORDS else "name", text, place)
        if character == "`":
            self._advance(at + 1)
            return Token("name", "`", place)
        if character == "/":
            end = PREDICATE_END.match(source, at)
            if end:
                self._advance(end.end())
                return Token("predicate end", "/", place)
        found = PUNCTUATION.match(source, at)
        if found is None:
            raise self.fail("D_SYNTAX", f'syntax error near "{character}"')
        self._advance(found.end())
        return Token("punctuation", found[0], place)

    def _integer(self, text: str, place: SourcePlace) -> Token:
        digits = DIGITS.match(text)
        assert digits is not None
        end = digits.end()
        if text[0] == "0" and text[1:2] not in ("x", "X"):
            octal = re.match(r"[0-7]+", text)
            assert octal is not None
            if octal.end() < end:
                raise DError("D_INT_DIGIT", f"constant {text} contains invalid digit "
                             f"{text[octal.end()]}", place)
        value = _value(text[:end])
        suffix = text[end:]
        if value > INTEGER_MAX:
            raise DError("D_INT_OFLOW", f"constant {text} results in integer overflow", place)
        return Token("integer", text, place, value, suffix, text[0] != "0")

    def _string(self, place: SourcePlace) -> Token:
        found = STRING.match(self.source, self.at)
        assert found is not None
        if not found[2]:
            raise self.fail("D_STR_NL", "newline encountered in string literal")
        self._advance(found.end())
        return Token("string", found[0], place,
                     content=unescape_c(found[1].replace("\\\n", "")))

    def _character(self, place: SourcePlace) -> Token:
        found = CHARACTER.match(self.source, self.at)
        assert found is not None
        if not found[2]:
            raise self.fail("D_CHR_NL", "newline encountered in character constant")
        content = unescape_c(found[1])
        if not content:
            raise self.fail("D_CHR_NULL", "empty character constant")
        if len(content) > 8:
            raise self.fail("D_CHR_OFLOW", "character constant is too long")
        self._advance(found.end())
        value = int.from_bytes(content, "big")
        if len(content) == 1 and value > 127:
            value -= 256
        return Token("integer", found[0], place, value)

    # -- macros ------------------------------------------------------------------------------------

    def _argument(self, digits: str, text: str, place: SourcePlace) -> str | None:
        """Return the text of a macro argument, or None if it is missing and may be omitted."""
        number = int(digits[:9])
        if number >= len(self.macros.arguments):
            if not self.macros.options.given("defaultargs"):
                raise DError("D_MACRO_UNDEF", f"macro argument {text} is not defined", place)
            return None
        self.macros.used.add(number)
        return self.macros.arguments[number]

    def _macro(self, text: str, place: SourcePlace) -> Token:
        quoted, name = text.startswith("$$"), text.lstrip("$")
        if not name.isdigit():
            if name not in self.macros.variables:
                raise DError("D_MACRO_UNDEF", f"macro variable {text} is not defined", place)
            value = self.macros.variables[name]
            if quoted:
                return Token("string", text, place, content=str(value).encode())
            return Token("integer", text, place, value)
        given = self._argument(name, text, place)
        if quoted:
            return Token("string", text, place, content=unescape_c(given or ""))
        if given is None:
            return Token("integer", text, place, 0)
        if WORD.fullmatch(given) or SCOPED.fullmatch(given):
            return Token("keyword" if given in KEYWORDS else "name", given, place)
        number = re.fullmatch(r"([-+]?)(0[xX][0-9A-Fa-f]+|[0-9]+)([uUlL]*)", given)
        if number and len(given) <= MAX_ARGUMENT:
            digits = number[2]
            octal = digits[0] == "0" and digits[1:2] not in ("x", "X")
            if not octal or not digits.strip("01234567"):
                value = _value(digits)
                if value > INTEGER_MAX:
                    raise DError("D_MACRO_OFLOW", f"macro argument {text} constant {digits} "
                                 "results in integer overflow", place)
                return Token("integer", given, place, -value if number[1] == "-" else value,
                             number[3], not octal)
        if len(given) > 1 and given[0] == given[-1] == '"':
            given = given[1:-1]
        return Token("string", text, place, content=unescape_c(given))


def _value(digits: str) -> int:
    """Return the value of digits in C notation, or INTEGER_MAX + 1 if there are too many digits."""
    if len(digits.lstrip("0xX")) > MAX_DIGITS:
        return INTEGER_MAX + 1
    return int(digits, 16 if digits[1:2] in ("x", "X") else 8 if digits[0] == "0" else 10)


def between(source: str, first: SourcePlace, last: SourcePlace) -> str:
    """Return the source text between two positions, including the last character."""
    lines = source.split("\n")[first.line - 1 : last.line]
    lines[-1] = lines[-1][: last.column]
    lines[0] = lines[0][first.column - 1 :]
    return "\n".join(lines)
