"""Tests that the laboratory finds wrong relocations of GENERIC kernels' instructions."""

import pytest

from tests.conftest import ARCHES, real_kernel
from tests.mutation import MUTATIONS, encodings, missed


@pytest.mark.parametrize("arch", ARCHES)
def test_a_wrong_relocation_of_each_kind_is_detected(arch):
    codes = encodings(real_kernel(arch), arch)
    for mutation in MUTATIONS:
        lost, kinds = missed(arch, codes, mutation, 4, 40)
        print(arch, mutation, kinds)
        assert lost == {}, mutation
