"""Tests that pictures of random firings on GENERIC kernels show the recorded values."""

import os
import random

import pytest

from emu.host.errors import KinstError
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.view.film import alone, film
from kinst_emu.explain.view.page import page
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.explain.test_film import LARGEST
from tests.kinst_emu.explain.test_picture import held_to_the_recording, pictures_of

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
FIRINGS = int(os.environ.get("KINST_FIRINGS") or 20)
MOMENTS = 20  # number of pictures that are checked for each firing
CALLS = (("strlen", 'strlen("hello")'), ("strtoul", 'strtoul("-0x12zz", 0, 16)'),
         ("malloc", "malloc(100, &M_TEMP, 2)"), ("uifind", "uifind(7)"), ("crget", "crget()"),
         ("kern_setenv", 'kern_setenv("a", "b")'))


@pytest.fixture(params=ARCHES)
def kernel(request):
    return real_kernel(request.param)


def test_pictures_of_random_firings_match_the_recordings(kernel):
    chosen, done, seen = random.Random(SEED), 0, 0
    for _ in range(50 * FIRINGS):
        function, call = chosen.choice(CALLS)
        offset = chosen.randrange(min(300, kernel.symbols.find(function).size))
        try:
            explained = explain(kernel, Asked(f"{function}:{offset}", call))
        except KinstError as error:  # no instruction begins at this offset, or it is not executed
            assert any(text in str(error) for text in (
                "no instruction begins", "executes the instruction only 0 times",
                "cannot be probed")), error
            continue
        pictures = pictures_of(explained)
        numbers = range(len(pictures.moments))
        for number in chosen.sample(numbers, min(MOMENTS, len(numbers))):
            seen += held_to_the_recording(explained.firing, pictures.svg(number),
                                          pictures.moments[number])
        written = page(explained.title, explained.about, explained.steps, pictures.with_data(),
                       alone(film(pictures)))
        assert len(written.encode()) < LARGEST, f"{explained.title}: KINST_SEED={SEED}"
        done += 1
        if done == FIRINGS:
            break
    assert done == FIRINGS and seen > FIRINGS, f"KINST_SEED={SEED}"
