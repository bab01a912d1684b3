"""Fixtures and pytest hooks for all tests."""

import os
import re
import zlib
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from emu.elf.image import Image, load_image
from emu.unicorn.machine import UnicornMachine
from images import catalog
from tests.slow import LEFT_OUT, ONE_ARCHITECTURE

ARCHES = ("amd64", "arm64", "riscv64")
MEMORY = 64 << 20
# Disable Hypothesis's deadline: the duration of an example depends on the load of the host.
settings.register_profile("any machine", deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# Whether to run everything: by default, tests that take minutes are skipped or take samples.
FULL = "KINST_FULL" in os.environ
# The user's kernels must be found before `private_directories` replaces the user's store.
REAL = {arch: catalog.real_kernel(arch) for arch in ARCHES}


@pytest.fixture(autouse=True, scope="session")
def private_directories(tmp_path_factory):
    """Keep the tests from using the user's cache and store."""
    for name in ("KINST_CACHE", "KINST_DATA"):
        os.environ[name] = str(tmp_path_factory.mktemp(name))


# Run the longest tests first, so that no worker starts a long test near the end.
LONG = ("tests/test_package.py", "tests/kinst/verify/crosscheck/", "tests/emu/qemu/test_faults.py")


ARCHITECTURE = re.compile(r"(?<=[\[-])(amd64|arm64|riscv64)(?=[\]-])")


def left_out(node):
    """Return why ``make test`` leaves out a test, or None.

    Of a slow test that exists for each architecture, it runs one; which one depends on the name.
    """
    name = node.partition("[")[0]
    if name in LEFT_OUT:
        return "slow: runs only with KINST_FULL"
    architecture = ARCHITECTURE.search(node)
    if architecture is None or name not in ONE_ARCHITECTURE:
        return None
    chosen = ARCHES[zlib.crc32(name.encode()) % len(ARCHES)]
    return None if architecture[1] == chosen else "slow: without KINST_FULL, one architecture runs"


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    for item in items:
        reason = None if FULL else left_out(item.nodeid)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def skips(reports):
    """Return (reason, number of skipped tests) pairs, the most frequent reason first."""
    counted = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports
                      if isinstance(report.longrepr, tuple | list))
    return counted.most_common()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """After the failures, print one line for each reason why tests were skipped."""
    yield
    skipped = skips(terminalreporter.stats.get("skipped", ()))
    if skipped:
        terminalreporter.section("skipped")
    for reason, count in skipped:
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")


@pytest.fixture(params=ARCHES)
def arch(request):
    """Run the test once for each architecture, and return the architecture's name."""
    return request.param


@pytest.fixture
def image(arch):
    """Return the teaching kernel for an architecture."""
    return catalog.find(f"teaching/{arch}")


@pytest.fixture
def booted(image):
    """Return a machine that has booted the teaching kernel to its prompt."""
    from images import boots

    return boots.booted(image, MEMORY)


@pytest.fixture
def fresh(image):
    """Return a machine that is about to execute the teaching kernel's first instruction."""
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    return machine


def real_kernel(arch: str) -> Image:
    """Return the user's FreeBSD kernel for an architecture, or skip the test."""
    path = REAL[arch]
    if path is None:
        pytest.skip(f"no FreeBSD kernel for {arch} to test on: set KINST_KERNELS to a directory "
                    "with one, or register one with 'kinst images add'")
    return load_image(path)
