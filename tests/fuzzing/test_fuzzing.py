"""Tests that run each fuzzer for a few seconds; ``bench/fuzz`` runs them for longer."""

import random
import time
from collections import Counter

import pytest

from tests.fuzzing import (
    d_programs,
    devices,
    files,
    gdb_packets,
    gdb_stub,
    magics,
    states,
    verbs,
)

SECONDS = 3


@pytest.mark.parametrize("fuzzer, wanted", [
    (d_programs, {"ran", "refused"}), (gdb_packets, {"looks", "drives"}),
    (gdb_stub, {"refused", "went on"}), (magics, {"refused", "returned", "completed"}),
    (states, {"refused", "goes on"}),
    (verbs, {"refused", "returned"}),
    (devices, {"packet answered", "pcap refused", "network queue stopped", "state refused"}),
], ids=["d", "gdb", "stub", "magics", "states", "verbs", "devices"])
def test_random_input_is_accepted_or_refused(fuzzer, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ground, outcomes, number = fuzzer.ground(), Counter(), 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or not wanted <= outcomes.keys():
        number += 1
        assert number < 10_000 or wanted <= outcomes.keys(), outcomes
        outcomes[fuzzer.once(random.Random(number), ground)] += 1


@pytest.mark.parametrize("name", files.FUZZERS)
def test_damaged_files_are_read_or_refused(name):
    fuzzer = files.FUZZERS[name]  # the fuzzer also checks that the undamaged file can be read
    assert fuzzer.once(random.Random(0), fuzzer.ground()) in ("read", "refused")
