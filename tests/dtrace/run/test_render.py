"""Tests of printing values from their bytes and types."""

from dtrace.run.render import NoSymbols, Typed
from dwarf.types import Enumeration, Member, Structure

FEW = Enumeration("few", 4, lambda: (("MINUS", -1), ("FIRST", 1), ("FIFTH", 5)))
MANY = Enumeration("many", 4, lambda: (("NONE", 0), ("LAST", 15)))


def test_bit_fields_of_enumeration_types_are_printed_by_name():
    members = (Member("k", 0, 5, lambda: FEW), Member("m", 5, 4, lambda: FEW),
               Member("n", 9, 4, lambda: MANY), Member("o", 13, 4, lambda: MANY),
               Member("p", 17, 4, lambda: FEW), Member("whole", 32, None, lambda: FEW),
               Member("all", 64, 32, lambda: FEW))
    members += (Member("nothing", 96, 0, lambda: MANY), Member("behind", 96, None, lambda: MANY))
    kind = Structure("struct", "two", 12, lambda: members)
    word = 0x1F | 5 << 5 | 15 << 9 | 9 << 13 | 14 << 17 | 1 << 31
    content = b"".join(value.to_bytes(4, "little") for value in (word, 1, 0xFFFFFFFF))
    assert Typed(NoSymbols()).text(content, kind) == """struct two {
    enum few k :5 = MINUS
    enum few m :4 = FIFTH
    enum many n :4 = LAST
    enum many o :4 = 9
    enum few p :4 = -2
    enum few whole = FIRST
    enum few all = MINUS
    enum many nothing :0 = NONE
    enum many behind = NONE
}"""
