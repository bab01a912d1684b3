"""Kernels as Python programs open them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from images.shell import with_folder, with_userland
from kinst_emu.api.kernel_file import KernelFile
from kinst_emu.api.machine import Machine
from kinst_emu.cli.boot_words import with_cpus
from kinst_emu.terminal.terminal import parse_size

if TYPE_CHECKING:
    from kinst_emu.explore.explorer import Explored

MEMORY = "512M"


class Kernel(KernelFile):
    """A kernel, and the machines that it runs on."""

    def boot(self, memory: str = MEMORY, limit: int = boots.LIMIT) -> Machine:
        """A machine at the kernel's prompt: restored from the user's cache, or booted and kept
        there.

        :param memory: the guest's RAM, like ``512M`` or ``1G``.
        :param limit: instructions after which a boot that has to be made is given up.
        :raises BootError: when the kernel does not get there; its ``console`` is what it wrote.
        """
        return Machine(self, boots.booted(self._image, parse_size(memory), limit))

    def start(self, memory: str = MEMORY) -> Machine:
        """A machine early in its boot: vectors and page tables are there, devices are not looked
        for yet.  ``machine.run(console=kinst_emu.PROMPTS)`` boots on from there, with probes.
        """
        machine = UnicornMachine(self._image, parse_size(memory))
        machine.boot()
        boots.at_start(machine)
        return Machine(self, machine)

    def reset(self, memory: str = MEMORY) -> Machine:
        """A machine at the kernel's first instruction."""
        machine = UnicornMachine(self._image, parse_size(memory))
        machine.boot()
        return Machine(self, machine)

    def unbooted(self, memory: str = MEMORY) -> Machine:
        """A machine with the kernel in memory, mapped where it was linked, and nothing executed:
        enough for calls of functions that need nothing else."""
        return Machine(self, boots.unbooted(self._image, parse_size(memory)))

    def restore(self, path: str | Path) -> Machine:
        """A machine from a snapshot file (``machine.save``, ``kinst boot --save``).

        :raises SnapshotError: when it is none, or of another kernel.
        """
        return Machine(self, snapshot.restore(Path(path), self._image))


    def explore(self, *runs: str, **asked: Any) -> "Explored":
        """Try the orders in which calls can run at once; takes what ``explore`` of
        ``kinst_emu.explore.from_python`` takes::

            assert not kernel.explore("uihold(u)", "uifree(u)", setup="u = uifind(7)").findings
        """
        from kinst_emu.explore.from_python import explore

        return explore(self._image, *runs, **asked)


def open_kernel(name: str | Path, modules: Sequence[str | Path] = (), *, userland: bool = False,
                files: str | Path | None = None, cpus: int = 1) -> Kernel:
    """Open a kernel.

    :param userland: with our userland: it boots to a shell, to which ``machine.command`` gives
        commands.
    :param files: a folder whose files it has in /files; then with our userland, too.
    :param cpus: how many the computer has, at most 8.
    :param modules: to be loaded behind it, with those that they depend on: files, or names of files
        beside it (``kinst.ko``).
    :param name: a file, or a name that ``kinst images`` lists.
    :raises ImageError: when there is none, or it is no kernel for amd64, arm64 or riscv64.
    :raises KinstError: for a kernel that has no more than one CPU, and too many of them.
    """
    image = with_cpus(catalog.find(str(name), [str(module) for module in modules]), cpus)
    if userland or files is not None:
        image = with_folder(with_userland(image), None if files is None else Path(files))
    return Kernel(image)


def images() -> Sequence[str]:
    """The names of the kernels that are here, as ``open`` takes them."""
    return [image.name for image in catalog.known() if image.path is not None]
