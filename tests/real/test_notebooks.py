"""Tests that the notebooks in examples/ work on GENERIC kernels."""

import pytest

from tests.conftest import REAL, real_kernel
from tests.kinst_emu.shell.test_notebooks import NOTEBOOKS, execute, held


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_the_expected_results_on_a_real_kernel(name, arch, monkeypatch):
    real_kernel(arch)
    held(name, execute(name, str(REAL[arch]), monkeypatch))
