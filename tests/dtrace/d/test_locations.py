"""Tests of probe arguments whose DWARF location differs from probe to probe."""

import pytest

from dtrace.d.language.surroundings import Located, Nowhere
from dtrace.d.language.types import CHAR, INT, LONG
from dwarf.locations import Constant, Location, Operation, Pieces, Register
from dwarf.types import Member, Structure
from emu.host.errors import KinstError
from tests.dtrace.programs import quiet, run, tag

BEGIN, END, ERROR = 1, 2, 3  # IDs of the probes BEGIN, END and ERROR
MASK = (1 << 64) - 1
SAID = []


@pytest.fixture
def places(monkeypatch):
    """Return a function that sets the locations of args[0] and arg0 for every clause."""
    def keep(found, kind=LONG, others=False):
        SAID.clear()
        monkeypatch.setattr(Nowhere, "located", lambda self, index, typed: Located(
            "x", kind, found, others, "x is nowhere",
            lambda kept, count: SAID.append((kept, count))))
    return keep


def number(value):
    return Location(Constant(value & MASK), False)


def test_each_probe_reads_the_argument_from_its_own_location(places):
    places({BEGIN: number(7), END: number(-3)})
    assert quiet("BEGIN, END { printf(\"%d \", args[0]); } BEGIN { exit(0); }") == "7 -3 "
    assert not SAID


def test_probes_without_a_location_use_the_calling_convention(places):
    places({99: number(7), 101: number(7), 2000: number(8)})
    assert quiet("BEGIN { printf(\"%d\", arg1); exit(0); }") == "0"


@pytest.mark.parametrize("kind, value, shown", [
    (INT, 0xFFFFFFFF, "-1"), (INT, 0x1_0000_0005, "5"), (LONG, 0xFFFFFFFF, "4294967295")])
def test_a_value_is_converted_to_its_type(places, kind, value, shown):
    places({BEGIN: number(value)}, kind)
    assert quiet("BEGIN { printf(\"%d\", args[0]); exit(0); }") == shown


@pytest.mark.parametrize("operator, signed, left, right, wanted", [
    ("/", True, -9, 2, -4), ("%", False, -1, 10, 5), (">>", True, -8, 1, -4),
    (">>", False, -8, 1, (1 << 63) - 4), ("<", True, -1, 0, 1), ("==", True, 3, 3, 1),
    ("*", False, 1 << 40, 1 << 40, 0), ("-", False, 0, 1, -1), ("^", False, 5, -1, -6)])
def test_location_arithmetic_uses_64_bits(places, operator, signed, left, right, wanted):
    places({BEGIN: Location(Operation(operator, Constant(left & MASK), Constant(right & MASK),
                                      signed), False)})
    assert quiet("BEGIN { printf(\"%d\", args[0]); exit(0); }") == str(wanted)


def test_a_probe_without_the_argument_ends_the_clause_with_a_fault(places):
    places({BEGIN: None, END: number(4)})
    status, out, said = run("-q", "-n", "BEGIN, END { printf(\"%d\", args[0]); } "
                            "BEGIN { exit(0); } ERROR { printf(\"fault %d \", arg4); }")
    assert (status, out) == (0, "fault 10 4\n")
    assert "unavailable argument in" in said
    assert set(SAID) == {(1, 2)}


@pytest.mark.parametrize("place", [None, Location(Register(77), False)])
def test_an_argument_that_no_probe_has_is_refused(places, place):
    places({BEGIN: place})
    assert tag("BEGIN { trace(args[0]); }") == "D_ARGS_IDX"


def test_an_argument_that_other_probes_have_is_accepted(places):
    places({END: None}, others=True)
    assert quiet("BEGIN { printf(\"%d\", args[1]); exit(0); }") == "0"
    assert SAID[0] == (0, 1)


def test_sizeof_works_for_an_unavailable_argument(places):
    places({BEGIN: None}, INT)
    assert quiet("BEGIN { printf(\"%d\", sizeof(args[0])); exit(0); }") == "4"


@pytest.mark.parametrize("name", ["args[0]", "arg0"])
def test_an_argument_has_no_address(places, name):
    places({BEGIN: number(7)})
    assert tag(f"BEGIN {{ trace(&{name}); }}") == "D_ADDROF_LVAL"


def test_locations_of_thousands_of_probes_are_looked_up(places):
    places({n: number(n % 997) for n in range(5000)})
    assert quiet("BEGIN { printf(\"%d\", args[0]); exit(0); } "
                 "END { printf(\" %d\", args[0]); }") == "1 2"


def test_the_reason_for_an_unknown_argument_is_reported(monkeypatch):
    def none(self, index, typed):
        raise KinstError("several locations are possible")
    monkeypatch.setattr(Nowhere, "located", none)
    _status, _out, said = run("-n", "BEGIN { trace(args[0]); }")
    assert "several locations are possible" in said


def test_a_memory_location_is_read_at_its_address(places):
    places({BEGIN: Location(Constant(0x10), True)})
    status, _out, said = run("-q", "-n", "BEGIN { trace(args[0]); exit(0); }")
    assert status == 0 and "invalid address (0x10)" in said


def test_a_number_in_two_registers_is_assembled(places):
    places({BEGIN: Pieces(((Constant(0xAAAA1234), 2), (Constant(0xBB5678), 2)))}, INT)
    assert quiet('BEGIN { printf("%x", args[0]); exit(0); }') == "56781234"


def test_a_partly_described_value_is_refused(places):
    pair = Structure("struct", "pair", 16, lambda: (
        Member("a", 0, None, lambda: LONG), Member("b", 64, None, lambda: LONG)))
    for kind, text in ((LONG, "args[0]"), (pair, "args[0].b")):
        places({BEGIN: Pieces(((Constant(0x1234), 4),))}, kind)
        status, out, said = run("-q", "-n", f'BEGIN {{ printf("%x", {text}); exit(0); }}')
        assert status == 1 and not out and "nowhere" in said


def test_a_structure_in_two_registers_is_assembled(places):
    pair = Structure("struct", "pair", 12, lambda: (
        Member("a", 0, None, lambda: LONG), Member("b", 64, None, lambda: INT)))
    places({BEGIN: Pieces(((Constant(0x1122334455667788), 8), (Constant(0xFFFFFFFE), 4)))}, pair)
    assert quiet('BEGIN { printf("%x %d", args[0].a, args[0].b); exit(0); }'
                 ) == "1122334455667788 -2"


def test_a_three_byte_structure_in_one_register_is_copied(places):
    three = Structure("struct", "three", 3, lambda: tuple(
        Member(name, 8 * n, None, lambda: CHAR) for n, name in enumerate("abc")))
    places({BEGIN: Location(Constant(0x7F332211), False)}, three)
    assert quiet('BEGIN { printf("%d %d %d %d", args[0].a, args[0].b, args[0].c, '
                 'sizeof(args[0])); exit(0); }') == "17 34 51 3"
