"""Kernels, as opened by Python programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emu.host.errors import KinstError
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from images.shell import with_folder, with_userland
from images.systems import with_disks
from kinst_emu.api.kernel_file import KernelFile
from kinst_emu.api.machine import Machine
from kinst_emu.cli.boot_words import with_cpus
from kinst_emu.cli.device_words import attached
from kinst_emu.terminal.terminal import parse_size

if TYPE_CHECKING:
    from kinst_emu.explore.explorer import Explored

MEMORY = "512M"


class Kernel(KernelFile):
    """Kernel from which machines can be booted."""

    def boot(self, memory: str = MEMORY, limit: int = boots.LIMIT) -> Machine:
        """Return a machine at the kernel's prompt.

        The machine is restored from the user's cache.  If the cache does not have it, the kernel
        is booted and the machine is saved in the cache.

        :param memory: size of the guest's RAM, like ``512M`` or ``1G``.
        :param limit: maximum number of instructions of the boot.
        :raises BootError: when the kernel does not reach its prompt; the error's ``console`` has
            the console output.
        """
        return Machine(self, boots.booted(self._image, parse_size(memory), limit))

    def start(self, memory: str = MEMORY) -> Machine:
        """Return a machine at the earliest point of the boot at which probes can be enabled.

        Vectors and page tables are set up; devices have not been detected yet.
        ``machine.run(console=kinst_emu.PROMPTS)`` continues the boot, with probes.
        """
        machine = UnicornMachine(self._image, parse_size(memory))
        machine.boot()
        boots.at_start(machine)
        return Machine(self, machine)

    def reset(self, memory: str = MEMORY) -> Machine:
        """Return a machine at the kernel's first instruction."""
        machine = UnicornMachine(self._image, parse_size(memory))
        machine.boot()
        return Machine(self, machine)

    def unbooted(self, memory: str = MEMORY) -> Machine:
        """Return a machine with the kernel loaded into memory, before the first instruction.

        The kernel is mapped at the addresses that it was linked for.  This is enough to call
        functions that depend on nothing else.
        """
        return Machine(self, boots.unbooted(self._image, parse_size(memory)))

    def restore(self, path: str | Path) -> Machine:
        """Return a machine restored from a snapshot file (``machine.save``, ``kinst boot --save``).

        :raises SnapshotError: when the file is not a snapshot, or belongs to another kernel.
        """
        return Machine(self, snapshot.restore(Path(path), self._image))


    def explore(self, *runs: str, **asked: Any) -> "Explored":
        """Explore the interleavings of concurrent calls.

        The arguments are those of ``kinst_emu.explore.from_python.explore``::

            assert not kernel.explore("uihold(u)", "uifree(u)", setup="u = uifind(7)").findings
        """
        from kinst_emu.explore.from_python import explore

        return explore(self._image, *runs, **asked)


def open_kernel(name: str | Path, modules: Sequence[str | Path] = (), *, userland: bool = False,
                files: str | Path | None = None, cpus: int = 1, base: bool = False,
                single: bool = False, disks: Sequence[str | Path] = (),
                date: int | None = None, network: str | None = None,
                entropy: str | None = None, serial: bool = False) -> Kernel:
    """Open a kernel by its file or name.

    :param name: a file, or a name that ``kinst images`` lists.
    :param modules: kernel modules to load along with their dependencies: files, or names of files
        next to the kernel (``kinst.ko``).
    :param userland: boot with kinst's userland to a shell, for ``machine.command``.
    :param files: directory whose files the guest has in /files; without a disk, implies
        ``userland``.
    :param cpus: number of the guest's CPUs, at most 8.
    :param base: boot the base system that was fetched with the kernel, and log in as root.
    :param single: boot the system on the disk to single-user mode.
    :param date: time of day at the start of the boot, in seconds since 1970; None: with a disk,
        when the kernel was built, otherwise no clock.
    :param disks: disk images; the first one (after the base system) has the root file system.
    :param network: attach a network device: ``"peer"`` to the built-in peer, ``"peer:FOLDER"`` to
        a peer that serves the files of a folder, ``"wire"`` for ``machine.send_frame``.
    :param entropy: attach an entropy device whose bytes follow from this text.
    :param serial: attach a second serial port, for ``machine.second_output``.
    :raises ImageError: when the kernel is not found, or is not for amd64, arm64 or riscv64; when a
        disk image or the base system is not found.
    :raises KinstError: when the kernel cannot use this number of CPUs.
    """
    found = catalog.find(str(name), [str(module) for module in modules])
    image = with_disks(found, [Path(disk) for disk in disks], base, single, date)
    image = with_cpus(attached(image, network, entropy, serial), cpus)
    if image.options.disks and userland:
        raise KinstError("a system on a disk (base, disks) and the kinst-emu userland (userland) "
                         "exclude each other; leave out one of them")
    if userland or files is not None:
        image = with_folder(with_userland(image), None if files is None else Path(files))
    return Kernel(image)


def images() -> Sequence[str]:
    """Return the names of the available kernels, which can be passed to ``open``."""
    return [image.name for image in catalog.known() if image.path is not None]
