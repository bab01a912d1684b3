import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from emu.elf.image import Image, load_image
from emu.unicorn.machine import UnicornMachine
from images import catalog

ARCHES = ("amd64", "arm64", "riscv64")
MEMORY = 64 << 20
# How fast examples are made, and run, is the machine's and what else runs on it.
settings.register_profile("any machine", deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# Before the tests are given a store of their own.
REAL = {arch: catalog.real_kernel(arch) for arch in ARCHES}


@pytest.fixture(autouse=True, scope="session")
def private_directories(tmp_path_factory):
    """Tests leave the user's cache and store alone."""
    for name in ("KINST_CACHE", "KINST_DATA"):
        os.environ[name] = str(tmp_path_factory.mktemp(name))


# What takes longest comes first, so that nobody waits for it alone at the end.
LONG = ("tests/test_package.py", "tests/kinst/verify/crosscheck/", "tests/emu/qemu/test_faults.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def skips(reports):
    """Why tests were skipped: (reason, how many), the most frequent first."""
    counted = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports
                      if isinstance(report.longrepr, tuple | list))
    return counted.most_common()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """A line for each reason, not for each test, and below what has failed."""
    yield
    found = skips(terminalreporter.stats.get("skipped", ()))
    if found:
        terminalreporter.section("skipped")
    for reason, count in found:
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")


@pytest.fixture(params=ARCHES)
def arch(request):
    return request.param


@pytest.fixture
def image(arch):
    return catalog.find(f"teaching/{arch}")


@pytest.fixture
def booted(image):
    """The teaching kernel at its prompt."""
    from images import boots

    return boots.booted(image, MEMORY)


@pytest.fixture
def fresh(image):
    """The teaching kernel, about to execute its first instruction."""
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    return machine


def real_kernel(arch: str) -> Image:
    """The kernel a user gave for tests, or a skip that says so."""
    path = REAL[arch]
    if path is None:
        pytest.skip(f"there is no real kernel for {arch} to test on: KINST_KERNELS names no "
                    "directory with one, and none was registered by 'kinst images add'")
    return load_image(path)
