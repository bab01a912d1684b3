"""Variables in scope at an instruction (DWARF 5, 3.3.8, 3.5, 4.1).

A function's entry, or that of an inline copy, contains its parameters, its variables and its
lexical blocks; a block's variables are in scope within the block's addresses.  Concrete entries
leave out what has no code or value; the abstract entry of the function still names it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elftools.dwarf.die import DIE

from dwarf.entries import Entries
from dwarf.index import MAX_NAME, DebugIndex, Function, shown
from dwarf.locations import MAX_DEPTH, OPTIMIZED_OUT, Frame, Locations, Place, Unkept
from dwarf.ranges import Ranges
from dwarf.types import Type

PARAMETER, VARIABLE, BLOCK = (
    "DW_TAG_formal_parameter", "DW_TAG_variable", "DW_TAG_lexical_block")
MAX_BLOCKS = 10_000  # maximum number of blocks in a function
MAX_STEPS = 64  # maximum length of a chain of references


@dataclass(frozen=True, eq=False)
class Variable:
    """A parameter or local variable in scope at an instruction.

    :param place: location of its value when the instruction begins, or None.
    :param reason: why it has no location; empty if it has one.
    :param parameter: whether it is a parameter.
    :param depth: number of lexical blocks around its declaration, within its function.
    :param line: line of its declaration; 0 if unknown.
    :param link: callback that returns its type.
    """

    name: str
    place: Place | None
    reason: str
    parameter: bool
    depth: int
    line: int
    link: Callable[[], Type] = field(repr=False)

    @property
    def type(self) -> Type:
        """Type of the variable."""
        return self.link()


@dataclass(frozen=True)
class _Block:
    """A lexical block or function with the entries that it declares.

    :param ranges: address ranges [low, high); empty for the function itself.
    """

    depth: int
    ranges: tuple[tuple[int, int], ...]
    entries: tuple[DIE, ...]

    def contains(self, address: int) -> bool:
        return not self.depth or any(low <= address < high for low, high in self.ranges)


class Scopes:
    """Variables in scope at the instructions of one file.

    :param linked: returns a callback for the type of an entry.
    :raises DebugDataError: from every method, if the data is damaged.
    """

    def __init__(self, entries: Entries, index: DebugIndex, locations: Locations,
                 linked: Callable[[DIE], Callable[[], Type]]) -> None:
        self._entries, self._index, self._locations = entries, index, locations
        self._linked = linked
        self._ranges = Ranges(entries.file)
        self._blocks: dict[int, tuple[_Block, ...]] = {}

    def variables(self, copy: Function, address: int, frame: Frame | None) -> list[Variable]:
        """Return the variables of a function or inline copy that are in scope at an instruction.

        Those of the innermost block are first, and a name's first variable hides the others; the
        order within a block is that of the declarations.

        :param frame: frame as in ``Locations.parameters``.
        """
        with self._entries.reading():
            found = []
            for block in reversed(self._of(copy)):
                if block.contains(address):
                    found += [self._variable(entry, block.depth, copy, address, frame)
                              for entry in block.entries]
            return [variable for variable in found if variable.name]

    def names(self, copy: Function) -> set[str]:
        """Return the names of all variables of a function, in scope or not."""
        with self._entries.reading():
            subject = self._index.subject(copy.number)
            if subject is None:
                return set()
            return {name for block in self._walk(self._entries.entry(*subject), 0)
                    for entry in block.entries if (name := self._name(entry))}

    def _of(self, copy: Function) -> tuple[_Block, ...]:
        if copy.number not in self._blocks:
            entry = self._entries.entry(*self._index.entry(copy.number))
            blocks = tuple(self._walk(entry, 0))
            origin = self._origin(entry)
            if origin is not None:
                blocks = (self._with_abstract(blocks, origin), *blocks[1:])
            self._blocks[copy.number] = blocks
        return self._blocks[copy.number]

    def _walk(self, entry: DIE, depth: int) -> Iterator[_Block]:
        """Yield a function or block and the blocks inside it, outer blocks first."""
        waiting, count = [(entry, depth)], 0
        while waiting:
            around, depth = waiting.pop(0)
            children = list(self._entries.children(around, PARAMETER, VARIABLE, BLOCK))
            ranges = (tuple((one.low, one.high) for one in self._ranges.of(around))
                      if depth else ())
            yield _Block(depth, ranges, tuple(c for c in children if c.tag != BLOCK))
            if depth < MAX_DEPTH:
                waiting += [(child, depth + 1) for child in children if child.tag == BLOCK]
            count += 1
            if count > MAX_BLOCKS:
                raise ValueError(f"the entry at {entry.offset:#x} has more than {MAX_BLOCKS} "
                                 "lexical blocks")

    def _with_abstract(self, blocks: tuple[_Block, ...], origin: DIE) -> _Block:
        """Return the outermost block with those variables of its function that it leaves out."""
        known = {abstract.offset for block in blocks for entry in block.entries
                 if (abstract := self._origin(entry)) is not None}
        missing = [entry for entry in self._entries.children(origin, PARAMETER, VARIABLE)
                   if entry.offset not in known]
        return _Block(0, (), (*blocks[0].entries, *missing))

    @staticmethod
    def _origin(entry: DIE) -> DIE | None:
        if "DW_AT_abstract_origin" not in entry.attributes:
            return None
        return entry.get_DIE_from_attribute("DW_AT_abstract_origin")

    def _attribute(self, entry: DIE, name: str) -> object:
        """Return the value of an attribute of an entry or of its abstract entry, or None."""
        for _ in range(MAX_STEPS):
            if name in entry.attributes:
                return entry.attributes[name].value
            origin = self._origin(entry)
            if origin is None:
                return None
            entry = origin
        raise ValueError(f"the chain of references to the entry at {entry.offset:#x} is too long")

    def _name(self, entry: DIE) -> str:
        name = self._attribute(entry, "DW_AT_name")
        return shown(name[:MAX_NAME]) if isinstance(name, bytes) else ""

    def _variable(self, entry: DIE, depth: int, copy: Function, address: int,
                  frame: Frame | None) -> Variable:
        place, reason = None, ""
        try:
            if self._attribute(entry, "DW_AT_declaration"):
                raise Unkept("declared here, but defined elsewhere")
            place = self._locations.find(entry, copy, address, frame)
        except Unkept as error:
            reason = str(error) or OPTIMIZED_OUT
        line = self._attribute(entry, "DW_AT_decl_line")
        return Variable(self._name(entry), place, reason, entry.tag == PARAMETER, depth,
                        line if isinstance(line, int) else 0, self._linked(entry))
