"""Tests of the text and the order graph of locks."""

from dtrace.flow.lock_events import Holding, Lock
from kinst_emu.locks.report import classes, events, graph, inversions, orders, to_json

A, B, C = Lock(1, "mutex", "a"), Lock(2, "sx", "b"), Lock(3, "mutex", 'c"')
FOUND = [
    Holding(A, 7, False, 10, 110, (1,), released=40, held=30, releaser=7),
    Holding(B, 7, True, 20, 120, (2,), released=30, held=10, within=(A,), releaser=7),
    Holding(B, 8, False, 50, 150, (3,), 25, 80, 30, releaser=9),
    Holding(A, 8, False, 60, 160, (4,), released=70, held=10, within=(B,), releaser=8),
    Holding(C, 8, False, 61, 161, (5,), held=39, within=(B, A)),
    Holding(C, 9, True, None, 100, (), released=15, held=5, releaser=9),
]
NAMES = {7: "seven", 8: "eight", 9: "nine"}


def where(sites):
    return "" if not sites else f"f{sites[0]} file.c:{sites[0]}"


def test_orders_and_their_inversions_are_those_of_the_classes():
    found = orders(FOUND)
    assert [(one.before, one.after, one.count) for one in found if "c" not in one.after] == [
        ("mutex a", "sx b", 1), ("sx b", "mutex a", 1)]
    ((one, other),) = inversions(found)
    assert {(one.before, one.after), (other.before, other.after)} == {
        ("mutex a", "sx b"), ("sx b", "mutex a")}
    assert one.where == (2,) and other.where == (4,)


def test_each_acquisition_and_release_is_a_line_in_the_order_of_execution():
    lines = list(events(FOUND, NAMES, where, 100))
    assert lines[0].split() == ["ns", "thread", "lock"]
    assert lines[1] == "        10 seven        + mutex a 0x1 f1 file.c:1"
    assert lines[2] == '         5 nine         - mutex c" 0x3 shared, held 5 ns'
    assert lines[3] == "        20 seven          + sx b 0x2 shared f2 file.c:2"
    assert "        50 eight        + sx b 0x2 f3 file.c:3, waited 25 ns" in lines
    assert "        80 eight        - sx b 0x2, held 30 ns by nine" in lines


def test_an_unknown_address_is_said_to_be_unknown():
    lock = Lock(None, "mutex", "a", 0x1018)
    found = [Holding(lock, 7, False, 10, 10, (1,), released=20, held=10)]
    assert [line.split("+ ")[1] for line in events(found, NAMES, where, 0) if "+ " in line] == [
        "mutex a at an unknown address f1 file.c:1"]
    assert to_json(found, NAMES, where)[0]["address"] is None
    (row,) = to_json([Holding(A, 0, True, None, 0, ())], NAMES, where)
    assert row["thread"] is None and row["thread_name"] == ""  # a sharer from before the window


def test_a_summary_has_a_line_for_each_class_the_longest_held_first():
    lines = list(classes(FOUND, where))[1:]
    assert [line.split("  ")[-1].split(";")[0] for line in lines] == [
        'mutex c"', "mutex a", "sx b"]
    (b,) = [line for line in lines if "sx b" in line]
    assert b.split()[:4] == ["2", "40", "30", "25"] and "longest: f3 file.c:3" in b


def test_json_has_every_holding():
    rows = to_json(FOUND, NAMES, where)
    assert len(rows) == len(FOUND)
    assert rows[1]["within"] == ["mutex a"] and rows[5]["acquired"] is None
    assert rows[2]["thread_name"] == "eight" and rows[2]["waited"] == 25


def test_the_graph_quotes_names_and_marks_inversions():
    text = graph(orders(FOUND))
    assert '"mutex a" -> "sx b" [label="1", color="#b3001b"];' in text
    assert '"sx b" -> "mutex c\\"" [label="1"];' in text
