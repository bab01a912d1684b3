"""Tests that QEMU and LLVM agree with the quiz's answers about real kernels."""

import shutil

import pytest

from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.learn.quiz.test_quiz import (
    COUNT,
    MC,
    TURN,
    asked,
    check_displacements,
    check_levels,
)


@pytest.fixture(scope="module", params=ARCHES)
def real(request):
    machine, found = asked(real_kernel(request.param), COUNT * len(TURN), 7)
    assert all(sum(q.level == level for q in found) == COUNT for level in TURN)
    return machine, found


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_qemu_confirms_the_answers_on_real_kernels(real):
    check_levels(*real)


@pytest.mark.skipif(MC is None, reason="llvm-mc is not installed: apt-get install llvm")
def test_llvm_confirms_trampoline_answers_on_real_kernels(real):
    assert check_displacements(*real)
