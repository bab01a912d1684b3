"""Tests of the comparison of two paths, on paths made of calls chosen by Hypothesis."""

from hypothesis import given
from hypothesis import strategies as st

from dtrace.flow.path_difference import Match, compare
from dtrace.flow.thread_path import PathFrame, ThreadPath
from dtrace.flow.walk import INLINE, INTERRUPT
from emu.replay.inputs import Position

# A call: the name of its function, and what it does: addresses of instructions, and calls.
calls = st.recursive(
    st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 4), min_size=1, max_size=4)),
    lambda inner: st.tuples(st.sampled_from("abc"), st.lists(
        st.integers(1, 4) | inner, min_size=1, max_size=4)),
    max_leaves=12)


def made(call, how="call"):
    """Return the path of a call; a call in it whose name is ``!`` is an interrupt."""
    path = ThreadPath(0, Position(0, 0), Position(0, 0), (), {})

    def add(call, how, parent, depth):
        number = len(path.frames)
        path.frames.append(PathFrame(call[0], how, parent, depth, len(path.pcs)))
        for one in call[1]:
            if isinstance(one, int):
                path.pcs.append(one)
            else:
                add(one, {"!": INTERRUPT, "i": INLINE}.get(one[0], "call"), number, depth + 1)
        path.frames[number].end = len(path.pcs)

    add(call, how, -1, 0)
    path.outer = 1
    path.runs = [(0, 0, 0)]
    return path


def flat(call):
    """Return what a call does, with the entries and ends of calls; interrupts are left out."""
    yield "enter", call[0]
    for one in call[1]:
        if isinstance(one, int):
            yield one
        elif one[0] == "i":
            yield from list(flat(one))[1:-1]
        elif one[0] != "!":
            yield from flat(one)
    yield "leave"


@given(calls)
def test_a_path_is_the_same_as_itself(call):
    found = compare(made(call), made(call))
    assert [one.match for one in found.calls] == [Match.SAME]
    assert not found.splits


@given(calls, calls)
def test_paths_are_the_same_exactly_if_they_execute_the_same(one, other):
    found = compare(made(one), made(other))
    assert (found.calls[0].match is Match.SAME) == (list(flat(one))[1:] == list(flat(other))[1:])
    assert bool(found.splits) == (found.calls[0].match is not Match.SAME)


@given(calls, calls)
def test_the_first_split_is_at_the_first_difference(one, other):
    paths = made(one), made(other)
    found = compare(*paths)
    ours, theirs = list(flat(one))[1:], list(flat(other))[1:]
    if ours == theirs:
        return
    same = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    done = sum(isinstance(entry, int) for entry in ours[:same])
    assert found.splits[0].moments == (done, done)


@given(calls, calls)
def test_the_order_of_the_paths_only_swaps_the_sides(one, other):
    there, back = compare(made(one), made(other)), compare(made(other), made(one))
    assert sum(call.match is Match.FIRST for call in there.calls) == sum(
        call.match is Match.SECOND for call in back.calls) or len(there.splits) != len(back.splits)
    assert {split.moments for split in there.splits[:1]} == {
        split.moments[::-1] for split in back.splits[:1]}


@given(calls, st.integers(0, 9))
def test_interrupts_make_no_difference(call, at):
    body = [*call[1]]
    body.insert(at % (len(body) + 1), ("!", [9, ("a", [9, 9]), 9]))
    found = compare(made(call), made((call[0], body)))
    assert [one.match for one in found.calls] == [Match.SAME]


def test_inlined_functions_are_part_of_the_function_around_them():
    one = "f", [1, ("i", [2, 3]), 4]
    other = "f", [1, ("i", [2]), ("i", [3]), 4]
    assert not compare(made(one), made(other)).splits
    third = compare(made(one), made(("f", [1, ("i", [2, 5]), 4])))
    assert [(split.name, split.moments) for split in third.splits] == [("f", (2, 2))]


def test_calls_of_one_side_are_listed_with_what_they_call():
    one = "f", [1, ("g", [2]), 3]
    other = "f", [1, 7, ("h", [8, ("k", [9])]), ("g", [2]), 3]
    found = compare(made(one), made(other))
    assert [(call.match, call.name, call.depth) for call in found.calls] == [
        (Match.DIFFERENT, "f", 0), (Match.SECOND, "h", 1), (Match.SECOND, "k", 2),
        (Match.SAME, "g", 1)]
    assert [split.moments for split in found.splits] == [(1, 1)]


def test_a_call_that_returns_early_parts_at_its_end():
    found = compare(made(("f", [("g", [1, 2]), 3])), made(("f", [("g", [1, 2, 5]), 3])))
    assert [(split.name, split.moments) for split in found.splits] == [("g", (2, 2))]


def test_very_many_calls_are_matched_up_to_the_first_that_differs():
    many = [("g", [1])] * 2100
    found = compare(made(("f", [("h", [1]), *many])), made(("f", [*many, ("h", [1])])))
    assert not any(call.match is Match.SAME for call in found.calls)
    found = compare(made(("f", [*many, 2])), made(("f", [*many, ("h", [1]), 2])))
    assert [call.name for call in found.calls if call.match is not Match.SAME] == ["f", "h"]
