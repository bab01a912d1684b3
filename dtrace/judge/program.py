"""D programs as trees that can be made smaller: programs, clauses, statements, expressions."""

from collections.abc import Iterator
from dataclasses import dataclass

# Smallest replacement for each kind of expression; other kinds have none.
SIMPLEST = {"int": "1", "string": '"a"'}


@dataclass(frozen=True)
class Node:
    """A part of a D program.

    :param kind: ``program``, ``clause``, ``statement``, ``int`` or ``string``: a part may be
        replaced by another one of the same kind.
    :param pieces: text and smaller parts, in the order of the source.
    :param optional: whether the program stays complete without the part.
    """

    kind: str
    pieces: tuple["str | Node", ...]
    optional: bool = False

    @property
    def text(self) -> str:
        """The source of the part."""
        return "".join(piece if isinstance(piece, str) else piece.text for piece in self.pieces)

    def parts(self) -> Iterator["Node"]:
        """Yield the smaller parts at any depth, larger ones first."""
        for piece in self.pieces:
            if isinstance(piece, Node):
                yield piece
                yield from piece.parts()


def smaller(node: Node) -> Iterator[Node]:
    """Yield variants of a program in which one part is missing or replaced by a smaller one.

    The first variants lack the most.
    """
    for index, piece in enumerate(node.pieces):
        if isinstance(piece, Node) and piece.optional:
            yield _with(node, index, ())
    for index, piece in enumerate(node.pieces):
        if not isinstance(piece, Node):
            continue
        for other in _replacements(piece):
            yield _with(node, index, (other,))
        for variant in smaller(piece):
            yield _with(node, index, (variant,))


def _with(node: Node, index: int, pieces: tuple["str | Node", ...]) -> Node:
    return Node(node.kind, (*node.pieces[:index], *pieces, *node.pieces[index + 1 :]),
                node.optional)


def _replacements(node: Node) -> Iterator[Node]:
    """Yield smaller parts of the same kind that can stand in a part's place."""
    if node.kind not in SIMPLEST:
        return
    simplest = Node(node.kind, (SIMPLEST[node.kind],), node.optional)
    if len(simplest.text) < len(node.text):
        yield simplest
    for part in node.parts():
        if part.kind == node.kind:
            yield Node(part.kind, part.pieces, node.optional)
