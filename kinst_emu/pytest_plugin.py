"""The pytest plugin: a booted kernel for each test.

``--kinst-kernel IMAGE`` (repeated for several) or the ini option ``kinst_kernels`` say which; a
test that takes ``kernel`` runs on each of them, on a machine that was put back to what it was.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import pytest

if TYPE_CHECKING:
    from kinst_emu.api.machine import Machine, State

DEFAULT = ["teaching/amd64"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kinst-emu", "kernels that run inside Python")
    group.addoption("--kinst-kernel", action="append", metavar="IMAGE", dest="kinst_kernels",
                    help="a kernel file, or a name from 'kinst images', for the fixture 'kernel'; "
                    "may be repeated")
    group.addoption("--kinst-userland", action="store_true", default=False,
                    help="boot them with our userland: kernel.command('ls /') gives its shell "
                    "commands")
    parser.addini("kinst_userland", "whether they boot with our userland", type="bool",
                  default=False)
    parser.addini("kinst_kernels", "kernels for the fixture 'kernel' (teaching/amd64)",
                  type="args", default=DEFAULT)


def pytest_configure(config: pytest.Config) -> None:
    names = config.getoption("kinst_kernels") or config.getini("kinst_kernels")
    userland = bool(config.getoption("kinst_userland") or config.getini("kinst_userland"))

    class Kernels:
        """The fixture, for the kernels of this run."""

        machines: ClassVar[dict[str, "tuple[Machine, State]"]] = {}

        @pytest.fixture(params=names)
        def kernel(self, request: pytest.FixtureRequest) -> "Iterator[Machine]":
            """A machine at its prompt (kinst_emu.Machine), the same for each test."""
            import kinst_emu

            if request.param not in self.machines:
                try:
                    machine = kinst_emu.open(request.param, userland=userland).boot()
                except kinst_emu.KinstError as error:
                    pytest.fail(f"the fixture 'kernel': {error}", pytrace=False)
                self.machines[request.param] = machine, machine.keep()
            machine, state = self.machines[request.param]
            try:
                yield machine
            finally:
                try:
                    machine.close_probes()
                    machine.restore(state)
                except kinst_emu.KinstError:
                    del self.machines[request.param]  # it is beyond repair: the next has a new one

    config.pluginmanager.register(Kernels(), "kinst_emu.kernels")
