"""Recursive-descent parser of D, from tokens to a syntax tree.

Types and constant expressions are resolved during parsing, since earlier declarations determine
whether a word is a type or a variable.  Everything else is left to the checker.
"""

from collections.abc import Callable
from typing import NoReturn, TypeVar

from dtrace.d.language import constants, syntax
from dtrace.d.language.declarations import (
    Declarator,
    Entry,
    Parameters,
    Specifiers,
    apply,
    array_size,
    check_parameters,
    member_layout,
)
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.identifiers import FUNCTIONS
from dtrace.d.language.lexer import MEMBER_NAMES, Lexer, Macros, Pragma, Token
from dtrace.d.language.provider_declarations import check_provider, probe_declaration
from dtrace.d.language.types import Universe, is_void, spelled
from dwarf.types import Array, Enumeration, Incomplete, Procedure, Structure, Type, strip

MAX_HEIGHT = 200  # maximum height of an expression's tree; each operator of `1 + 1 + 1` adds 1
MAX_DEPTH = 100  # maximum nesting of parentheses, blocks and declarators (Python's recursion limit)

# Binary operators, from the loosest to the tightest binding (DTrace guide, "Operator precedence").
PRECEDENCE = (
    ("||",), ("^^",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)
LEVEL = {operator: level for level, group in enumerate(PRECEDENCE) for operator in group}
ASSIGNMENTS = {
    "=": "", "*=": "*", "/=": "/", "%=": "%", "+=": "+", "-=": "-", "<<=": "<<", ">>=": ">>",
    "&=": "&", "^=": "^", "|=": "|"}
STORAGE = ("auto", "register", "static", "extern", "typedef", "self", "this")
QUALIFIERS = ("const", "restrict", "volatile")
TYPE_WORDS = ("void", "char", "short", "int", "long", "float", "double", "signed", "unsigned",
              "userland", "string")


POSTFIX = ("[", "(", ".", "->", "++", "--")  # begin what may follow an expression


Built = TypeVar("Built", bound=syntax.Expression)


class Parser:
    """Parser for the source of a D program or library.

    :param known: predicate: whether a word is a variable or a function, not a type.
    :param pragma: callback for each pragma.
    :param probes_only: whether every word between clauses is a probe description.
    :param string: whether the program comes from the command line, where clauses may omit their
        braces.
    """

    def __init__(self, source: str, macros: Macros, universe: Universe,
                 known: Callable[[str], bool], pragma: Callable[[Pragma], None],
                 probes_only: bool = False, string: bool = False) -> None:
        self.universe, self.known = universe, known
        self.lexer = Lexer(source, macros, self._names_type, pragma, probes_only)
        self.bare_allowed = string
        self._next: list[Token] = []
        self._between = True
        self._depth = 0
        self._closed = SourcePlace(1)  # position of the most recent closing brace
        self._variables: set[str] = set()  # names that denote both a type and a variable

    # -- tokens ------------------------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> Token:
        """Return the token that is a given number of tokens ahead, without consuming it."""
        following = self._next
        if following and not ahead:
            return following[0]
        while len(following) <= ahead:
            following.append(
                self.lexer.between() if self._between else self.lexer.expression())
        return following[ahead]

    def take(self) -> Token:
        """Consume the next token and return it."""
        token = self.peek()
        del self._next[0]
        return token

    def at(self, text: str, ahead: int = 0) -> bool:
        """Return whether a token ahead is the given punctuation or keyword."""
        token = self.peek(ahead)
        return token.text == text and token.kind in ("punctuation", "keyword")

    def accept(self, text: str) -> bool:
        """Consume the next token if it is the given punctuation or keyword."""
        if self.at(text):
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        """Consume the next token, which must be the given punctuation or keyword.

        :raises DError: if it is not.
        """
        if not self.at(text):
            self.wrong()
        return self.take()

    def wrong(self) -> NoReturn:
        """Raise a syntax error at the next token."""
        token = self.peek()
        if token.kind == "end":
            raise DError("D_SYNTAX", "syntax error near end of input", token.place)
        raise DError("D_SYNTAX", f'syntax error near "{token.text}"', token.place)

    def _mode(self, between: bool) -> None:
        assert not self._next or between == self._between
        self._between = between

    def _names_type(self, name: str) -> bool:
        return (name not in self._variables and not self.known(name)
                and self.universe.named(name) is not None)

    def at_type(self, ahead: int = 0) -> bool:
        """Return whether a token ahead begins the name of a type."""
        token = self.peek(ahead)
        if token.kind == "keyword":
            return token.text in TYPE_WORDS or token.text in QUALIFIERS or token.text in (
                "struct", "union", "enum")
        return token.kind == "name" and self._names_type(token.text)

    def deeper(self, place: SourcePlace) -> None:
        """Count one more level of nesting.

        :raises DError: if there are too many.
        """
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DError("D_SYNTAX", f"the program is nested deeper than {MAX_DEPTH} levels", place)

    def built(self, node: Built, *parts: syntax.Expression, levels: int = 1) -> Built:
        """Set the height of an expression from the heights of its parts; return the expression.

        :param levels: levels that the expression counts for, since its visitors may call each
            other more than once per node.
        :raises DError: if the tree is too high for recursive visitors.
        """
        node.height = levels + max([part.height for part in parts], default=0)
        if node.height > MAX_HEIGHT:
            raise DError("D_SYNTAX", f"the expression has more than {MAX_HEIGHT} levels",
                         node.place)
        return node

    # -- the program -------------------------------------------------------------------------------

    def program(self, piece: Callable[[syntax.Piece], None]) -> None:
        """Parse the program, and pass each declaration and clause to ``piece`` in source order."""
        while True:
            self._mode(True)
            token = self.peek()
            if token.kind == "end":
                return
            if token.kind in ("description", "integer"):
                piece(self._clause())
            elif self.at("inline"):
                piece(self._inline())
            elif self.at("translator"):
                piece(self._translator())
            elif self.at("provider"):
                piece(self._provider())
            elif token.kind in ("keyword", "name"):
                for declaration in self._declaration():
                    piece(declaration)
            else:
                self.wrong()

    def _clause(self) -> syntax.Clause:
        place = self.peek().place
        probes = [self._specifier()]
        while self.accept(","):
            probes.append(self._specifier())
        predicate, body = None, self.peek().place
        if self.at("/"):
            self.take()
            self._mode(False)
            predicate = self.expression()
            if self.peek().kind != "predicate end":
                self.wrong()
            self.take()
            if not self.at("{"):
                raise DError("D_SYNTAX", "expected actions { } following probe description and "
                             "predicate", predicate.place)
        elif not self.at("{"):
            if not self.bare_allowed:
                raise DError("D_SYNTAX", "expected predicate and/or actions following probe "
                             "description", place)
            return syntax.Clause(place, probes, None, [], bare=True)
        self.take()
        self._mode(False)
        statements = self._statements()
        return syntax.Clause(place, probes, predicate, statements, body=(body, self._closed))

    def _specifier(self) -> syntax.Specifier:
        token = self.take()
        if token.kind == "integer":
            return syntax.Specifier(token.place, token.text, token.value)
        if token.kind != "description":
            self._next.insert(0, token)
            self.wrong()
        return syntax.Specifier(token.place, token.text)

    def _statements(self) -> list[syntax.Statement]:
        """Parse statements up to the closing brace, and consume the brace."""
        statements: list[syntax.Statement] = []
        self.deeper(self.peek().place)
        while not self.at("}"):
            statements += self._statement()
        self._depth -= 1
        self._closed = self.take().place
        return statements

    def _statement(self) -> list[syntax.Statement]:
        if self.accept(";"):
            return []
        place = self.peek().place
        if self.accept("if"):
            self.deeper(place)
            self.expect("(")
            condition = self.expression()
            self.expect(")")
            then = self._block()
            otherwise = self._block() if self.accept("else") else []
            self._depth -= 1
            return [syntax.If(place, condition, then, otherwise)]
        expression = self.expression()
        if not self.at("}"):
            self.expect(";")
        return [syntax.Do(place, expression)]

    def _block(self) -> list[syntax.Statement]:
        if self.accept("{"):
            return self._statements()
        statements = self._statement()
        return statements

    def _inline(self) -> syntax.Inline:
        place = self.take().place
        self._mode(False)
        specifiers = self._specifiers(storage=True)
        if specifiers.storage not in ("", "static", "extern") or specifiers.storage == "extern":
            raise DError("D_DECL_BADCLASS", "specified storage class not appropriate for inline "
                         "declaration", place)
        declarator = self._declarator(named=None)
        if declarator.name is None:
            raise DError("D_DECL_USELESS", "inline declaration requires a name", place)
        self.expect("=")
        keys = declarator.keys()
        name = declarator.name
        if declarator.open_array:
            raise DError("D_DECL_ARRNULL",
                         f"inline declaration requires array tuple signature: {name}", place)
        kind = apply(specifiers, declarator, self.universe)
        if isinstance(kind, Array):
            raise DError("D_DECL_ARRNULL", "inline declaration cannot be of scalar array type: "
                         f"{name}", place)
        if is_void(kind):
            raise DError("D_DECL_VOIDOBJ", f"cannot declare void inline: {name}", place)
        if isinstance(strip(kind), Incomplete):
            raise DError("D_DECL_INCOMPLETE",
                         f"incomplete struct/union/enum {spelled(kind)}: {name}", place)
        names = [key for key, _kind, _place in keys or ()]
        known = self.known
        self.known = lambda word: word in names or known(word)
        value = self.assignment()
        self.known = known
        self.expect(";")
        found = None if keys is None else [(key, of) for key, of, _place in keys]
        return syntax.Inline(place, name, kind, found, value)

    def _translator(self) -> syntax.Translator:
        place = self.take().place
        self._mode(False)
        to = self.type_name()
        self.expect("<")
        source = self.type_name()
        parameter = self.take()
        if parameter.kind != "name":
            self._next.insert(0, parameter)
            self.wrong()
        self.expect(">")
        self.expect("{")
        known = self.known
        self.known = lambda name: name == parameter.text or known(name)
        members = []
        while not self.at("}"):
            name = self.take()
            if name.kind != "name" and name.text not in MEMBER_NAMES:
                self._next.insert(0, name)
                self.wrong()
            self.expect("=")
            members.append((name.text, self.assignment(), name.place))
            self.expect(";")
        self.known = known
        self.take()
        self.expect(";")
        return syntax.Translator(place, to, source, parameter.text, members)

    def _provider(self) -> syntax.ProviderDeclaration:
        place = self.take().place
        self._mode(False)
        name = self.take()
        if name.kind != "name":
            self._next.insert(0, name)
            self.wrong()
        check_provider(name.text, name.place)
        declared = syntax.ProviderDeclaration(place, name.text)
        self.expect("{")
        while not self.accept("}"):
            self.expect("probe")
            probe = self.take()
            if probe.kind != "name":
                self._next.insert(0, probe)
                self.wrong()
            self.expect("(")
            native = self._parameters()
            seen = None
            if self.accept(":"):
                self.expect("(")
                seen = self._parameters()
            self.expect(";")
            made = probe_declaration(probe.place, probe.text, native, seen)
            if any(one.name == made.name for one in declared.probes):
                raise DError("D_PROV_PRDUP", f"probe redeclared: {name.text}:{made.name}",
                             probe.place)
            declared.probes.append(made)
        self.expect(";")
        return declared

    # -- declarations ------------------------------------------------------------------------------

    def _declaration(self) -> list[syntax.Declaration]:
        place = self.peek().place
        # The first word was lexed in between-clauses mode; lex the others as part of a declaration.
        self._between = False
        specifiers = self._specifiers(storage=True)
        declarations: list[syntax.Declaration] = []
        if self.at(";"):
            if specifiers.nothing:
                raise DError("D_DECL_USELESS", "useless declaration", place)
            specifiers.resolve(self.universe)
            self.take()
            return declarations
        while True:
            declarator = self._declarator(named=True)
            keys = declarator.keys()
            name = declarator.name
            assert name is not None
            if "`" in name:
                raise DError("D_DECL_SCOPE", "D scoping operator may not be used in a declaration "
                             f"name ({name})", declarator.place)
            kind = apply(specifiers, declarator, self.universe)
            storage = specifiers.storage
            if storage in ("auto", "register") or (storage == "static" and not isinstance(
                    strip(kind), Procedure)):
                raise DError("D_DECL_BADCLASS", "specified storage class not appropriate in D",
                             declarator.place)
            if storage == "typedef":
                self._typedef(name, kind, declarator.place)
            else:
                if declarator.open_array and storage != "extern":
                    raise DError("D_DECL_ARRNULL", "array declaration requires array dimension or "
                                 f"tuple signature: {name}", declarator.place)
                declarations.append(syntax.Declaration(
                    declarator.place, storage, name, kind,
                    None if keys is None else [of for _n, of, _p in keys]))
            if not self.accept(","):
                break
        self.expect(";")
        return declarations

    def _typedef(self, name: str, kind: Type, place: SourcePlace) -> None:
        if self.known(name):
            raise DError(
                "D_DECL_IDRED", f"global variable identifier redeclared: {name}", place)
        if self.universe.own(name) is not None:
            raise DError("D_DECL_IDRED", f"typedef redeclared: {name}", place)
        self.universe.define(name, kind)

    def _specifiers(self, storage: bool = False) -> Specifiers:
        specifiers = Specifiers(self.peek().place)
        any_word = False
        while True:
            token = self.peek()
            if token.kind == "keyword" and token.text in ("struct", "union"):
                specifiers.whole(self._structure(), token.place)
            elif token.kind == "keyword" and token.text == "enum":
                specifiers.whole(self._enumeration(), token.place)
            elif token.kind == "keyword" and token.text in TYPE_WORDS:
                if token.text == "string":
                    string = self.universe.own(self.take().text)
                    assert string is not None
                    specifiers.whole(string, token.place)
                else:
                    specifiers.add(self.take().text, token.place)
            elif token.kind == "keyword" and token.text in QUALIFIERS:
                self.take()
                specifiers.qualified = True
            elif token.kind == "keyword" and token.text in STORAGE and storage:
                specifiers.storage_class(self.take().text, token.place)
            elif token.kind == "name" and not specifiers.has_type and self._names_type(token.text):
                kind = self.universe.named(self.take().text)
                assert kind is not None
                specifiers.whole(kind, token.place)
            else:
                break
            any_word = True
        if not any_word:
            self.wrong()
        return specifiers

    def _declarator(self, named: bool | None) -> Declarator:
        """Parse a declarator.

        :param named: whether it must have a name (True), must not (False), or may (None).
        """
        place = self.peek().place
        self.deeper(place)
        pointers = 0
        while self.accept("*"):
            pointers += 1
            while self.peek().kind == "keyword" and self.peek().text in QUALIFIERS:
                self.take()
        token = self.peek()
        inner = None
        name = None
        if self.at("(") and (named is True or self.at("(", 1) or self.at("*", 1) or self.at("[", 1)
                             or (named is None and self.peek(1).kind == "name"
                             and not self.at_type(1))):
            self.take()
            inner = self._declarator(named)
            self.expect(")")
        elif token.kind == "name" and named is not False:
            name = self.take().text
        elif named is True:
            self.wrong()
        declarator = Declarator(token.place, name, pointers, inner)
        while self.at("[") or self.at("("):
            opening = self.take()
            if opening.text == "(":
                parameters, variadic = self._parameters()
                check_parameters(parameters, variadic, "function", opening.place)
                declarator.function(parameters, variadic)
            elif self.accept("]"):
                declarator.array(None)
            elif self.at_type() or self.at("...") or (
                    self.peek().kind == "keyword" and self.peek().text in STORAGE):
                parameters, variadic = self._parameters("]")
                check_parameters(parameters, variadic, "array", opening.place)
                declarator.keyed(parameters)
            else:
                value = self.conditional()
                self.expect("]")
                declarator.array(array_size(value, self.universe))
        self._depth -= 1
        return declarator

    def _parameters(self, closing: str = ")") -> tuple[Parameters, bool]:
        """Parse the parameters up to the closing mark; return them and whether ``...`` follows."""
        found: Parameters = []
        variadic = False
        if self.accept(closing):
            return found, False
        while True:
            if self.accept("..."):
                variadic = True
                break
            place = self.peek().place
            specifiers = self._specifiers(storage=True)
            declarator = self._declarator(named=None)
            if specifiers.storage not in ("", "register"):
                raise DError("D_DECL_PARMCLASS", "inappropriate storage class for function or "
                             "associative array parameter", place)
            if declarator.keys() is not None:
                raise DError("D_DECL_PROTO_TYPE", "function prototype may not use parameter of "
                             "type dynamic variable: "
                             f"{declarator.name or '(anonymous)'}, parameter #{len(found) + 1}",
                             place)
            found.append((declarator.name or "", apply(specifiers, declarator, self.universe),
                          place))
            if not self.accept(","):
                break
        self.expect(closing)
        return found, variadic

    def type_name(self) -> Type:
        """Parse the name of a type."""
        if not self.at_type():
            self.wrong()
        specifiers = self._specifiers()
        return apply(specifiers, self._declarator(named=False), self.universe)

    def _structure(self) -> Type:
        word = self.take().text
        place = self.peek().place
        tag = self.take().text if self.peek().kind == "name" else ""
        if not self.accept("{"):
            if not tag:
                self.wrong()
            found = self.universe.tagged(word, tag)
            if found is None:
                found = Incomplete(word, tag)
                self.universe.tag(word, tag, found)
            return found
        before = self.universe.tagged(word, tag) if tag else None
        if before is not None and not isinstance(before, Incomplete):
            raise DError("D_DECL_TYPERED", f"type redeclared: {word} {tag}", place)
        if tag:
            self.universe.tag(word, tag, Incomplete(word, tag))
        self.deeper(place)
        entries: list[Entry] = []
        while not self.accept("}"):
            specifiers = self._specifiers()
            if self.at(";"):
                self.wrong()
            while not self.at(";"):
                bits = None
                if self.at(":"):
                    declarator = Declarator(self.peek().place, None, 0)
                else:
                    declarator = self._declarator(named=True)
                if self.accept(":"):
                    bits = self.conditional()
                entries.append((declarator, specifiers, bits))
                if not self.accept(","):
                    break
            self.expect(";")
        self._depth -= 1
        if not entries:
            self.wrong()
        size, members = member_layout(word, entries, self.universe)
        structure = Structure(word, tag, size, lambda: tuple(members), True)
        if tag:
            self.universe.tag(word, tag, structure)
        return structure

    def _enumeration(self) -> Type:
        self.take()
        place = self.peek().place
        tag = self.take().text if self.peek().kind == "name" else ""
        if not self.accept("{"):
            if not tag:
                self.wrong()
            found = self.universe.tagged("enum", tag)
            if found is None:
                found = Incomplete("enum", tag)
                self.universe.tag("enum", tag, found)
            return found
        before = self.universe.tagged("enum", tag) if tag else None
        if before is not None and not isinstance(before, Incomplete):
            raise DError("D_DECL_TYPERED", f"type redeclared: enum {tag}", place)
        values: list[tuple[str, int]] = []
        taken: set[str] = set()
        kind = Enumeration(tag, 4, lambda: tuple(values))
        value = 0
        while True:
            name = self.take()
            if name.kind != "name":
                self._next.insert(0, name)
                self.wrong()
            if self.accept("="):
                value = constants.integer(
                    self.assignment(), self.universe, "D_DECL_ENCONST",
                    f"enumerator '{name.text}' must be assigned to an integral constant expression")
            if "`" in name.text:
                raise DError("D_DECL_SCOPE", "D scoping operator may not be used in an enumerator "
                             f"name ({name.text})", name.place)
            if not -(1 << 31) <= value < 1 << 31:
                raise DError("D_DECL_ENOFLOW", f"enumerator '{name.text}' value overflows INT_MAX "
                             f"({(1 << 31) - 1})", name.place)
            if name.text in taken:
                raise DError("D_UNKNOWN", f"failed to define enumerator '{name.text}': Duplicate "
                             "member name definition", name.place)
            if self.known(name.text):
                raise DError("D_DECL_IDRED", f"identifier redeclared: {name.text}", name.place)
            taken.add(name.text)
            values.append((name.text, value))
            self.universe.enumerate(iter([(name.text, value)]), kind)
            value += 1
            if not self.accept(","):
                break
        self.expect("}")
        if tag:
            self.universe.tag("enum", tag, kind)
        return kind

    # -- expressions -------------------------------------------------------------------------------

    def expression(self) -> syntax.Expression:
        """Parse an expression, including the comma operator."""
        value = self.assignment()
        while self.at(","):
            place = self.take().place
            right = self.assignment()
            value = self.built(syntax.Binary(place, ",", value, right), value, right)
        return value

    def assignment(self) -> syntax.Expression:
        """Parse an assignment, or any expression that binds more tightly."""
        self.deeper(self.peek().place)
        left = self.conditional()
        token = self.peek()
        if token.kind == "punctuation" and token.text in ASSIGNMENTS:
            if not isinstance(left,
                              syntax.Name | syntax.Aggregation | syntax.Index | syntax.MemberAccess
                              | syntax.Unary | syntax.Number | syntax.Text | syntax.Call
                              | syntax.OffsetOf | syntax.Translate | syntax.SizeOf):
                self.wrong()
            self.take()
            right = self.assignment()
            left = self.built(
                syntax.Assign(token.place, ASSIGNMENTS[token.text], left, right), left, right)
        self._depth -= 1
        return left

    def conditional(self) -> syntax.Expression:
        """Parse a conditional expression, or any expression that binds more tightly."""
        condition = self._binary(0)
        if not self.at("?"):
            return condition
        self.deeper(self.peek().place)
        place = self.take().place
        then = self.expression()
        self.expect(":")
        last = self.conditional()
        found = self.built(
            syntax.Ternary(place, condition, then, last), condition, then, last)
        self._depth -= 1
        return found

    def _binary(self, level: int) -> syntax.Expression:
        """Parse binary operators by precedence climbing over ``PRECEDENCE``."""
        left = self._cast()
        while True:
            token = self.peek()
            found = LEVEL.get(token.text) if token.kind == "punctuation" else None
            if found is None or found < level:
                return left
            self.take()
            right = self._binary(found + 1)
            left = self.built(syntax.Binary(token.place, token.text, left, right), left, right)

    def _cast(self) -> syntax.Expression:
        token = self.peek()
        if (token.kind == "punctuation" and token.text == "(" and self.at_type(1)
                and not self._assigned(2)):
            self.deeper(token.place)
            self.take()
            to = self.type_name()
            self.expect(")")
            operand = self._cast()
            found = self.built(syntax.Cast(token.place, to, operand), operand)
            self._depth -= 1
            return found
        return self._unary()

    def _assigned(self, ahead: int) -> bool:
        """Return whether the operator after a word shows that the word is a variable."""
        if self.peek(ahead - 1).kind != "name":
            return False
        return any(self.at(mark, ahead) for mark in ("=", "++", "--"))

    def _unary(self) -> syntax.Expression:
        token = self.peek()
        place = token.place
        self.deeper(place)
        found: syntax.Expression
        if token.kind == "punctuation" and token.text in ("++", "--"):
            self.take()
            operand = self._unary()
            found = self.built(syntax.Unary(place, token.text, operand), operand)
        elif token.kind == "punctuation" and token.text in ("&", "*", "+", "-", "~", "!"):
            self.take()
            operand = self._cast()
            found = self.built(syntax.Unary(place, token.text, operand), operand)
        elif token.kind != "keyword":
            found = self._postfix(self._primary())
        elif self.at("sizeof"):
            self.take()
            if self.at("(") and self.at_type(1):
                self.take()
                found = syntax.SizeOf(place, self.type_name())
                self.expect(")")
            else:
                operand = self._unary()
                found = self.built(syntax.Unary(place, "sizeof", operand), operand)
        elif self.at("stringof"):
            self.take()
            operand = self._unary()
            found = self.built(syntax.Unary(place, "stringof", operand), operand)
        else:
            found = self._postfix(self._primary())
        self._depth -= 1
        return found

    def _postfix(self, value: syntax.Expression) -> syntax.Expression:
        while True:
            token = self.peek()
            if token.text not in POSTFIX or token.kind != "punctuation":
                return value
            place = token.place
            if self.accept("["):
                keys = self._arguments("]")
                if not keys:
                    self.wrong()
                if isinstance(value, syntax.Aggregation) and not value.keys:
                    value.keys = keys
                    self.built(value, *keys)
                else:
                    value = self.built(syntax.Index(place, value, keys), value, *keys, levels=3)
            elif self.accept("("):
                if not isinstance(value, syntax.Name):
                    raise DError("D_FUNC_IDENT", "function designator is not of function type",
                                 place)
                arguments = self._arguments(")")
                if value.name not in FUNCTIONS and not self.known(value.name):
                    raise DError(
                        "D_FUNC_UNDEF", f"undefined function name: {value.name}", value.place)
                value = self.built(syntax.Call(place, value, arguments), *arguments)
            elif self.at(".") or self.at("->"):
                arrow = self.take().text == "->"
                name = self.take()
                if name.kind != "name" and name.text not in MEMBER_NAMES:
                    self._next.insert(0, name)
                    self.wrong()
                value = self.built(syntax.MemberAccess(place, value, arrow, name.text), value)
            else:  # ++ or --
                value = self.built(syntax.Unary(place, "x" + self.take().text, value), value)

    def _arguments(self, closing: str) -> list[syntax.Expression]:
        found: list[syntax.Expression] = []
        if self.accept(closing):
            return found
        while True:
            found.append(self.assignment())
            if not self.accept(","):
                break
        self.expect(closing)
        return found

    def _primary(self) -> syntax.Expression:
        token = self.take()
        place = token.place
        if token.kind == "integer":
            return syntax.Number(place, token.value, token.suffix, token.decimal)
        if token.kind == "string":
            return syntax.Text(place, token.content)
        if token.kind == "aggregation":
            return syntax.Aggregation(place, token.text)
        if token.kind == "keyword" and token.text in ("self", "this"):
            return syntax.Name(place, token.text)
        if token.kind == "keyword" and token.text == "offsetof":
            self.expect("(")
            kind = self.type_name()
            self.expect(",")
            name = self.take()
            if name.kind != "name" and name.text not in MEMBER_NAMES:
                self._next.insert(0, name)
                self.wrong()
            self.expect(")")
            return syntax.OffsetOf(place, kind, name.text)
        if token.kind == "keyword" and token.text == "xlate":
            self.expect("<")
            kind = self.type_name()
            self.expect(">")
            self.expect("(")
            operand = self.expression()
            self.expect(")")
            return self.built(syntax.Translate(place, kind, operand), operand)
        if token.kind == "punctuation" and token.text == "(":
            value = self.expression()
            self.expect(")")
            return value
        if token.kind == "name":
            if self._names_type(token.text):
                if not self._assigned_here():
                    self._next.insert(0, token)
                    self.wrong()
                self._variables.add(token.text)
            return syntax.Name(place, token.text)
        self._next.insert(0, token)
        self.wrong()

    def _assigned_here(self) -> bool:
        return any(self.at(mark) for mark in ("=", "++", "--", "["))
