"""Pytest plugin with the fixture ``kernel``, a booted kernel for each test.

``--kinst-kernel IMAGE`` (may be repeated) or the ini option ``kinst_kernels`` selects the kernels.
A test that takes ``kernel`` runs on each of them, on a machine restored to its state after boot.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import pytest

if TYPE_CHECKING:
    from kinst_emu.api.machine import Machine, State

DEFAULT = ["teaching/amd64"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("kinst-emu", "kernels that run inside Python")
    group.addoption("--kinst-kernel", action="append", metavar="IMAGE", dest="kinst_kernels",
                    help="kernel for the fixture 'kernel': a file, or a name from 'kinst images'; "
                    "may be repeated (default: the ini option kinst_kernels)")
    group.addoption("--kinst-userland", action="store_true", default=False,
                    help="boot the kernels with the kinst-emu userland, so that "
                    "kernel.command('ls /') works (default: the ini option kinst_userland)")
    group.addoption("--kinst-base", action="store_true", default=False,
                    help="boot the base systems that were fetched with the kernels, and log in as "
                    "root (default: the ini option kinst_base)")
    parser.addini("kinst_base", "boot the fetched base systems (default: false)", type="bool",
                  default=False)
    parser.addini("kinst_userland", "boot the kernels with the kinst-emu userland (default: false)",
                  type="bool", default=False)
    parser.addini("kinst_kernels", "kernels for the fixture 'kernel' (default: teaching/amd64)",
                  type="args", default=DEFAULT)


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture for the configured kernels."""
    names = config.getoption("kinst_kernels") or config.getini("kinst_kernels")
    userland = bool(config.getoption("kinst_userland") or config.getini("kinst_userland"))

    base = bool(config.getoption("kinst_base") or config.getini("kinst_base"))

    class Kernels:
        """Provider of the fixture ``kernel``; boots each kernel once and reuses its machine."""

        machines: ClassVar[dict[str, "tuple[Machine, State]"]] = {}

        @pytest.fixture(params=names)
        def kernel(self, request: pytest.FixtureRequest) -> "Iterator[Machine]":
            """A booted kinst_emu.Machine at its prompt, in the same state for each test."""
            import kinst_emu

            if request.param not in self.machines:
                try:
                    machine = kinst_emu.open(request.param, userland=userland,
                                             base=base).boot()
                except kinst_emu.KinstError as error:
                    pytest.fail(f"fixture 'kernel': {error}", pytrace=False)
                self.machines[request.param] = machine, machine.keep()
            machine, state = self.machines[request.param]
            try:
                yield machine
            finally:
                try:
                    machine.close_probes()
                    machine.restore(state)
                except kinst_emu.KinstError:
                    # The state cannot be restored, so the next test boots the kernel again.
                    del self.machines[request.param]

    config.pluginmanager.register(Kernels(), "kinst_emu.kernels")
