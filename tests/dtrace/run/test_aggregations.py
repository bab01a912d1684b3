"""Tests of aggregations: results compared with plain arithmetic, sorting, and merging."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrace.bpf._runtime import Runtime
from dtrace.bpf.layout import Aggregate, Helper, Region
from dtrace.d.compile.aggregations import value_count
from dtrace.d.language.identifiers import AGGREGATING, AggregationInfo, KeyShape
from dtrace.d.language.types import LONG
from dtrace.run.aggregations import (
    AggregationTable,
    Entry,
    Order,
    bounds,
    deviation,
    labels,
    scalar,
)

WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)


def aggregated(name, parameters, values):
    """Aggregate values without keys in the native executor and return the resulting entry."""
    info = AggregationInfo("@", [], AGGREGATING[name], parameters, number=0)
    kind = Aggregate[name.upper()]
    rt = Runtime({Region.GLOBALS: 8}, b"", [], 0, [(kind, value_count(info), parameters)], 1 << 20,
                 64, 0, (0, 0), 16, {})
    for value in values:
        rt.call(Helper.AGGREGATE, 0, 0, 0, value, 1)
    ((number, key, found),) = rt.aggregated()
    assert (number, key) == (0, b"")
    return Entry(info, (), found)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=20))
def test_scalar_aggregations_match_python_arithmetic(values):
    assert scalar(aggregated("count", (), values)) == len(values)
    assert scalar(aggregated("sum", (), values)) == sum(values)
    assert scalar(aggregated("min", (), values)) == min(values)
    assert scalar(aggregated("max", (), values)) == max(values)
    mean = abs(sum(values)) // len(values)
    assert abs(scalar(aggregated("avg", (), values))) == mean
    squares = sum(v * v for v in values) // len(values)
    assert deviation(aggregated("stddev", (), values)) == math.isqrt(squares - mean * mean)


def bucket(entry):
    (found,) = [n for n, value in enumerate(entry.values) if value]
    return found


@settings(max_examples=300, deadline=None)
@given(WHOLE)
def test_quantize_uses_the_bucket_of_the_right_power_of_two(value):
    entry = aggregated("quantize", (), [value])
    bound = bounds(entry)[bucket(entry)]
    if value == 0:
        assert bound == 0
    elif value > 0:
        assert bound <= value < 2 * bound
    else:
        assert 2 * bound < value <= bound or bound == -(1 << 62)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-1000, 1000), st.integers(1, 50),
       st.integers(1, 60))
def test_lquantize_uses_the_bucket_of_the_right_step(value, base, step, levels):
    entry = aggregated("lquantize", (base, step, levels), [value])
    number = bucket(entry)
    if value < base:
        assert number == 0
    elif value >= base + step * levels:
        assert number == levels + 1
    else:
        assert base + (number - 1) * step <= value < base + number * step


@settings(max_examples=200, deadline=None)
@given(st.integers(-5, 10**7), st.sampled_from([(10, 0, 5, 10), (10, 0, 5, 20), (2, 0, 10, 2),
                                                (10, 2, 4, 100), (3, 1, 6, 9)]))
def test_llquantize_uses_the_bucket_of_the_right_log_linear_step(value, parameters):
    entry = aggregated("llquantize", parameters, [value])
    number, found = bucket(entry), bounds(entry)
    if number == 0:
        assert value <= found[0]
    elif number == len(found) - 1:
        assert value >= found[-1]
    else:
        assert found[number] <= value < found[number + 1]
    assert len(labels(entry)) == len(found)


@pytest.mark.parametrize("order, expected", [
    (Order(), [3, 1, 2]), (Order(by_key=True), [1, 2, 3]), (Order(reverse=True), [2, 1, 3]),
])
def test_entries_are_sorted_as_the_options_say(order, expected):
    info = AggregationInfo("@", [], AGGREGATING["sum"], number=0)
    table = AggregationTable()
    shape = KeyShape(info, [(LONG, "value", 8)])
    table.merge([shape], [(0, key.to_bytes(8, "little"), [value])
                          for key, value in ((1, 20), (2, 30), (3, 10))])
    assert [entry.key[0].number for entry in table.sorted(order)] == expected


def test_several_aggregations_are_joined_by_their_keys():
    first = AggregationInfo("@a", [], AGGREGATING["sum"], number=0)
    second = AggregationInfo("@b", [], AGGREGATING["count"], number=1)
    shapes = [KeyShape(info, [(LONG, "value", 8)]) for info in (first, second)]
    table = AggregationTable()
    key = (7).to_bytes(8, "little")
    table.merge(shapes, [(0, key, [5]), (1, (8).to_bytes(8, "little"), [2])])
    found = {k[0].number: [scalar(e) for e in row]
             for k, row in table.joined([first, second], Order())}
    assert found == {7: [5, 0], 8: [0, 2]}


def test_later_values_are_merged_into_an_entry():
    info = AggregationInfo("@", [], AGGREGATING["min"], number=0)
    table = AggregationTable()
    for value in (5, 3, 9):
        table.merge([KeyShape(info, [])], [(0, b"", [value])])
    assert [scalar(e) for e in table.of(info)] == [3]
