"""Tests of the simulated week of bench/week."""

import importlib.util
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PATH = Path(__file__).resolve().parents[2] / "bench" / "fleet.py"
SPEC = importlib.util.spec_from_file_location("fleet", PATH)
fleet = importlib.util.module_from_spec(SPEC)
sys.modules["fleet"] = fleet  # dataclasses look their module up
SPEC.loader.exec_module(fleet)

RATES = {"one": fleet.Rates(10_000, 10.0, 0.01), "two": fleet.Rates(5000, 5.0, 0.02)}
PLAN = fleet.Plan(commits=20, kernels=10, touched=1.0, own=0.2, shared=0.5, machines=4, cores=8,
                  efficiency=1.0, written=1e9, stores=2, bytes_new=100, bytes_known=50)


def test_every_changed_build_is_tested_and_each_encoding_is_counted_once():
    week = fleet.simulated(PLAN, RATES)
    assert week.builds == 20 * 10 * 2
    assert week.executed + week.known == 20 * 10 * 15_000
    # The first of ten configurations executes 20 %, the other nine half of this.
    assert week.executed == 20 * (2000 + 9 * 1000 + 1000 + 9 * 500)
    seconds = 200 * (10.0 + 5.0) + (20 * 11_000 * 0.01 + 20 * 5500 * 0.02) / 8
    assert week.core_hours == pytest.approx(seconds * 8 / 3600)
    assert week.stored == week.executed * 100 + week.known * 50


def test_a_single_commit_takes_as_long_as_its_builds_on_the_machines():
    plan = replace(PLAN, commits=1, kernels=8, machines=4, shared=0.0)
    only = {"one": RATES["one"]}
    week = fleet.simulated(plan, only)
    assert week.latencies == [pytest.approx(2 * (10.0 + 2000 * 0.01 / 8), abs=0.01)]


def test_a_slow_writer_delays_the_results():
    plan = replace(PLAN, commits=1, kernels=8, stores=1, written=1000.0)
    week = fleet.simulated(plan, {"one": RATES["one"]})
    assert week.latencies[0] > 8 * 10.0


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.floats(0.0, 1.0), st.integers(0, 99))
def test_more_machines_are_never_slower_and_do_the_same_work(machines, touched, seed):
    plan = replace(PLAN, machines=machines, touched=touched)
    few, more = (fleet.simulated(replace(plan, machines=count), RATES, seed)
                 for count in (machines, machines + 1))
    assert (few.builds, few.executed, few.known) == (more.builds, more.executed, more.known)
    assert max(more.latencies) <= max(few.latencies) + 1e-6
    assert 0.0 <= more.used <= few.used + 1e-9 <= 1.0 + 1e-6
    assert few.latency(0.5) <= few.latency(0.95) <= few.latency(1.0)


def test_commits_come_within_the_week_and_more_often_by_day():
    times = fleet.arrivals(10_000, random.Random(1))
    assert times == sorted(times) and times[0] >= 0 and times[-1] < fleet.WEEK
    by_day = sum(time // 3600 % 24 in fleet.BUSY_HOURS for time in times)
    assert 0.72 < by_day / len(times) < 0.78
