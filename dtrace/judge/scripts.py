"""D programs of users as trees of clauses and statements, so that they can be made smaller.

The text is only divided; a program that does not compile can be made smaller, too.
"""

import re
from collections.abc import Iterator

from dtrace.judge.program import Node

# Parts of a source in which a brace or semicolon has no meaning, or one brace or semicolon
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|[{};]', re.DOTALL)
CONTROL = re.compile(r"[ \t]*#[^\n]*\n?")
SPACE = re.compile(r"(?:\s|/\*.*?\*/)+", re.DOTALL)
# Words at the beginning of a declaration that may contain braces
DECLARES = re.compile(r"(?:struct|union|enum|typedef|translator|provider|inline|self|this)\b")
ELSE = re.compile(r"\s*else\b")


def divided(source: str) -> Node:
    """Divide the source of a D program into clauses, declarations and statements."""
    return Node("program", tuple(_top(source)))


def _top(source: str) -> Iterator[str | Node]:
    at = 0
    while at < len(source):
        control = CONTROL.match(source, at)
        space = SPACE.match(source, at)
        if control and (at == 0 or source[at - 1] == "\n"):
            yield Node("option", (control[0],), optional=True)
            at = control.end()
        elif space:
            yield space[0]
            at = space.end()
        else:
            declares = DECLARES.match(source, at) is not None
            end, body = _extent(source, at, declares)
            if body is None:
                yield Node("declaration", (source[at:end],), optional=True)
            else:
                yield Node("clause", (source[at:body], *_statements(source[body : end - 1]),
                                      source[end - 1 : end]), optional=True)
            at = end


def _extent(source: str, begin: int, declares: bool) -> tuple[int, int | None]:
    """Return where a part at the top level ends, and where its statements begin.

    :param declares: whether the part is a declaration, which ends at a semicolon.
    """
    depth, body = 0, None
    for token in TOKEN.finditer(source, begin):
        if token[0] == "{":
            depth += 1
            body = body or token.end()
        elif token[0] == "}":
            depth -= 1
            if depth <= 0 and not declares:
                return token.end(), body
        elif token[0] == ";" and depth <= 0:
            return token.end(), None
    return len(source), None


def _statements(body: str) -> Iterator[str | Node]:
    """Divide what is between the braces of a clause."""
    at, begin, depth = 0, 0, 0
    for token in TOKEN.finditer(body):
        at = token.end()
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
        if depth > 0 or token[0] not in (";", "}") or (
                token[0] == "}" and ELSE.match(body, at)):
            continue
        yield Node("statement", (body[begin:at],), optional=True)
        begin = at
    if body[begin:].strip():
        yield Node("statement", (body[begin:],), optional=True)
    elif body[begin:]:
        yield body[begin:]
