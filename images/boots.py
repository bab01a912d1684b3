"""Machines ready for work: a kernel booted to its prompt, from the user's cache when it can be."""

import contextlib
import sys
import threading
from pathlib import Path

from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.host.errors import KinstError, SnapshotError
from emu.host.fingerprint import fingerprint, machine_modules
from emu.host.progress import PROGRESS
from emu.machine.machine import Stop, StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images.cache import cached_file

MEMORY = 512 << 20
LIMIT = 20_000_000_000  # instructions of a boot; GENERIC's take less than a fiftieth of it
SETTLING = 20_000_000  # instructions from the prompt to there, at the most
# What a boot is made by, beside the architecture's folder: snapshots of another machine are not
# gone on from.
HANDOVER = 1e-5  # s: a restore asks for the interpreter between two hundred pieces
KEPT = 4  # boots of one kernel, made by so many versions of this program


class BootError(KinstError):
    """The kernel did not get to its prompt; ``console`` is what it wrote."""

    def __init__(self, text: str, console: bytes = b"") -> None:
        super().__init__(text)
        self.console = console


def at_start(machine: UnicornMachine) -> None:
    """Run a machine that was given its kernel until that has its vectors and page tables, and is
    about to start everything else: from there on it can be probed.

    :raises BootError: when it does not get there.
    """
    starts = machine.guest.boot.starts
    found = [machine.image.symbols.find(name) for name in starts]
    addresses = [symbol.address for symbol in found if symbol is not None]
    if not addresses:
        raise BootError(f"{machine.image.path}: has none of the functions {', '.join(starts)} "
                        "from which the boot is traced", b"")
    stop = machine.run(Until(addresses=addresses, console=machine.guest.boot.prompts))
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    if stop.reason is not StopReason.ADDRESS:
        raise BootError(f"{machine.image.path}: the boot ended early: {stop}",
                        bytes(machine.console.text))


def boot_to_prompt(machine: UnicornMachine, limit: int | None = None) -> Stop:
    """Run a machine that was given its kernel until it waits at its prompt: the kernel asks for its
    root file system (the teaching kernel has none and asks for a command).

    :param limit: instructions after which the boot is given up.
    :raises BootError: when it stops otherwise.
    """
    stop = machine.run(Until(console=machine.guest.boot.prompts, instructions=limit))
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    if stop.reason is not StopReason.CONSOLE:
        raise BootError(f"{machine.image.path}: the boot ended early: {stop}",
                        bytes(machine.console.text))
    return stop


def settle_at_reader(machine: UnicornMachine) -> None:
    """From the prompt to the function that waits for input, so that no lock is held."""
    found = [machine.image.symbols.find(name) for name in machine.guest.boot.readers]
    addresses = [reader.address for reader in found if reader is not None]
    if addresses:
        machine.run(Until(addresses=addresses, instructions=machine.instructions + SETTLING))


def snapshot_path(image: Image, memory: int) -> Path:
    arch = arch_of(image).name
    made_by = fingerprint(
        (*machine_modules(arch), "images.boots"), ("unicorn",))
    name = f"{arch}-{image.identity[-32:]}-{memory >> 20}M-{made_by}.kinst"
    return cached_file("snapshots", name)


def _drop_older(path: Path) -> None:
    """Of the boots of one kernel, the latest are kept."""
    kernel = path.name.rpartition("-")[0]
    kept = {other: other.stat().st_mtime for other in path.parent.glob(f"{kernel}-*.kinst")}
    for other in sorted(kept, key=kept.__getitem__, reverse=True)[KEPT:]:
        other.unlink(missing_ok=True)


def booted(image: Image, memory: int = MEMORY, limit: int = LIMIT) -> UnicornMachine:
    """A machine at its prompt; booted once, then restored from the cache.

    :param limit: instructions after which a boot is given up.
    :raises BootError: when the kernel does not boot.
    """
    path = snapshot_path(image, memory)
    if path.exists():
        try:
            with PROGRESS.working(f"restoring {image.path}, booted before"):
                return snapshot.restore(path, image)
        except SnapshotError:
            pass  # made again below
    with PROGRESS.working(f"booting {image.path} (the next time it is restored)"):
        machine = UnicornMachine(image, memory)
        machine.boot()
        stop = boot_to_prompt(machine, limit)
        if stop.detail != machine.guest.boot.shell_prompt:
            settle_at_reader(machine)
    try:
        snapshot.save(machine, path)
        _drop_older(path)
    except (SnapshotError, OSError) as error:
        print(f"kinst: the boot was not kept: {error}", file=sys.stderr)
    return machine


class BootAhead:
    """A kept boot that is restored while its caller still checks what to do with it: most of that
    is reading, checksums and decompression, which leave a second core to Python.

    A kernel that was not booted yet waits for ``machine``: what is refused must not wait for a
    boot.
    """

    def __init__(self, image: Image, memory: int = MEMORY) -> None:
        self.image, self.memory = image, memory
        self._machine: UnicornMachine | None = None
        self._thread = threading.Thread(target=self._restore)  # an end waits for it
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(HANDOVER)
        self._thread.start()

    def _restore(self) -> None:
        try:
            # What is wrong is found once more, and said, by ``machine``.
            with contextlib.suppress(KinstError, OSError):
                path = snapshot_path(self.image, self.memory)
                if path.exists():
                    self._machine = snapshot.restore(path, self.image)
        finally:
            sys.setswitchinterval(self._interval)

    def machine(self) -> UnicornMachine:
        """See ``booted``; once."""
        with PROGRESS.working(f"restoring {self.image.path}, booted before"):
            self._thread.join()
        found, self._machine = self._machine, None
        return found if found is not None else booted(self.image, self.memory)


def unbooted(image: Image, memory: int = MEMORY) -> UnicornMachine:
    """A machine with the image in memory, mapped where it was linked, nothing executed."""
    machine = UnicornMachine(image, memory)
    machine.place_image()
    return machine
