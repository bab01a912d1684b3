"""Boot kernels to their prompt, or restore earlier boots from the user's cache."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.host.atomic_file import PART, drop_abandoned
from emu.host.errors import KinstError, SnapshotError
from emu.host.fingerprint import machine_modules
from emu.host.printable import plain
from emu.host.progress import PROGRESS
from emu.host.system import boot_id
from emu.machine.machine import Stop, StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images.cache import cached_file
from images.known_digests import known_fingerprint
from images.login import (
    IDLE,
    LoginError,
    at_session_prompt,
    log_in,
    quoted_last_line,
    run_to,
)
from images.shell import CommandError, run_command

MEMORY = 512 << 20
LIMIT = 20_000_000_000  # maximum number of instructions of a boot; GENERIC needs less than 2 %
SETTLING = 20_000_000  # maximum number of instructions from the prompt to the wait for input
HANDOVER = 1e-5  # thread switch interval in seconds; a restore takes the GIL about 200 times
KEPT_RAM = 6  # maximum number of files from which RAM is mapped, each as large as the RAM in use
KEPT = 4  # maximum number of cached boots per kernel, made by different versions of kinst-emu


class BootError(KinstError):
    """Error raised if a kernel does not reach its prompt; ``console`` is the kernel's output."""

    def __init__(self, text: str, console: bytes = b"") -> None:
        super().__init__(text)
        self.console = console


def at_start(machine: UnicornMachine) -> None:
    """Run a machine with a loaded kernel until its vectors and page tables are set up.

    The kernel is then about to start everything else, and can be probed.

    :raises BootError: the boot ended before that point, or the kernel lacks the functions that
        mark it.
    """
    starts = machine.guest.boot.starts
    symbols = [machine.image.symbols.find(name) for name in starts]
    addresses = [symbol.address for symbol in symbols if symbol is not None]
    if not addresses:
        raise BootError(f"{machine.image.path}: the boot cannot be traced, because the kernel has "
                        f"none of the functions {', '.join(starts)}", b"")
    stop = machine.run(Until(addresses=addresses, console=machine.guest.boot.prompts))
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    if stop.reason is not StopReason.ADDRESS:
        raise BootError(f"{machine.image.path}: the boot ended early: {stop}",
                        bytes(machine.console.text))


def boot_to_prompt(machine: UnicornMachine, limit: int | None = None) -> Stop:
    """Run a machine with a loaded kernel until the kernel, or the system on its disk, is ready.

    A FreeBSD kernel asks for its root file system or starts a shell, and a complete system asks for
    a login; the teaching kernel asks for a command.

    :param limit: maximum number of instructions, or None for no limit.
    :raises BootError: the machine stopped before the prompt.
    """
    stop = run_to(machine, Until(console=machine.guest.boot.prompts, instructions=limit), IDLE,
                  lambda: at_session_prompt(machine))
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    if stop.reason is StopReason.CONSOLE or (
            stop.reason is StopReason.IDLE and at_session_prompt(machine)):
        return stop
    raise BootError(f"{machine.image.path}: the boot ended early: {stop}; "
                    f"{quoted_last_line(machine)}", bytes(machine.console.text))


def boot_to_shell(machine: UnicornMachine, limit: int | None = None) -> Stop:
    """Boot like ``boot_to_prompt``; log in as root if a system on the disk asks for a login.

    :param limit: maximum number of instructions, or None for no limit.
    :raises BootError: the machine stopped before the prompt, or there is no way to a root shell.
    """
    if machine.guest.boot.session is None or not machine.image.options.programs:
        return boot_to_prompt(machine, limit)
    try:
        stop = log_in(machine, limit)
    except LoginError as error:
        raise BootError(str(error), bytes(machine.console.text)) from None
    if stop.reason is not StopReason.CONSOLE:
        raise BootError(f"{machine.image.path}: the boot ended early: {stop}; "
                        f"{quoted_last_line(machine)}", bytes(machine.console.text))
    return stop


def settle_at_reader(machine: UnicornMachine) -> None:
    """Run from the prompt to the function that waits for input, where no lock is held."""
    symbols = [machine.image.symbols.find(name) for name in machine.guest.boot.readers]
    addresses = [reader.address for reader in symbols if reader is not None]
    if addresses:
        machine.run(Until(addresses=addresses, instructions=machine.instructions + SETTLING))


def snapshot_path(image: Image, memory: int) -> Path:
    """Return the path of a kernel's boot snapshot in the cache.

    The name includes a fingerprint of the machine's code, so a changed machine boots again.
    """
    arch = arch_of(image).name
    made_by = known_fingerprint(
        (*machine_modules(arch), "images.boots", "images.login", "images.shell"),
        ("unicorn", "dpkt"))
    name = f"{arch}-{image.identity[-32:]}-{memory >> 20}M-{made_by}.kinst"
    return cached_file("snapshots", name)


def ram_path(digest: str) -> Path | None:
    """Return the path of the file from which the RAM of a cached boot is mapped.

    The name includes the host's current boot, because a crash of the host may have damaged older
    files; there is no file if that is unknown.  Only the files that were used last are kept.

    :param digest: of the cached boot.
    """
    boot = boot_id()
    if not digest or not boot:
        return None
    path = cached_file("ram", f"{digest[:32]}-{boot}.ram")
    with contextlib.suppress(OSError):
        if path.exists():
            os.utime(path)
        else:
            _keep_latest(path.parent.glob("*.ram"), KEPT_RAM - 1)
            drop_abandoned(path.parent, f".*{PART}", time.time())  # of earlier boots of the host
    return path


def _drop_older(path: Path) -> None:
    """Delete all but the latest cached boots of one kernel."""
    kernel = path.name.rpartition("-")[0]
    _keep_latest(path.parent.glob(f"{kernel}-*.kinst"), KEPT)


def _keep_latest(paths: Iterable[Path], count: int) -> None:
    """Delete all but the latest of some files."""
    times = {other: other.stat().st_mtime for other in paths}
    for other in sorted(times, key=times.__getitem__, reverse=True)[count:]:
        other.unlink(missing_ok=True)


def booted(image: Image, memory: int = MEMORY, limit: int = LIMIT) -> UnicornMachine:
    """Return a machine at its prompt, restored from the cache or booted and then cached.

    :param limit: maximum number of instructions for the boot.
    :raises BootError: the kernel does not boot.
    """
    path = snapshot_path(image, memory)
    if path.exists():
        try:
            with PROGRESS.working(f"restoring the boot of {image.path}"):
                return _with_files(snapshot.restore(path, image, ram_path))
        except SnapshotError:
            pass  # the cached boot is unusable: boot again below
    with PROGRESS.working(f"booting {image.path} (later runs restore this boot)"):
        machine = UnicornMachine(image, memory)
        machine.boot()
        stop = boot_to_shell(machine, limit)
        if stop.detail != machine.guest.boot.shell_prompt:
            settle_at_reader(machine)
    network = machine.board.network
    try:
        if network is not None and network.used:
            raise SnapshotError("during the boot, the guest asked the network's peer for a file")
        snapshot.save(machine, path)
        _drop_older(path)
    except (SnapshotError, OSError) as error:
        print(f"kinst: the boot was not saved in the cache: {error}", file=sys.stderr)
    return _with_files(machine)


def _with_files(machine: UnicornMachine) -> UnicornMachine:
    """Insert and mount the disk with files, if the machine has one and is at a root shell.

    :raises CommandError: the guest cannot mount it.
    """
    session = machine.guest.boot.session
    if machine.board.files is None or session is None:
        return machine
    machine.insert_files()
    console = bytes(machine.console.text)
    ran = run_command(machine, session.attach.format(len(machine.board.disks)), LIMIT)
    if ran.status:
        said = plain(ran.output.decode("utf-8", "replace").strip())
        raise CommandError(f"{machine.image.path}: the system cannot mount the disk with the "
                           f"files: {said}")
    machine.console.text[:] = console
    return machine


class BootAhead:
    """Background restore of a cached boot while the caller validates its arguments.

    Reading, checksums and decompression take most of the time and release the GIL, so the caller
    can use a second core.

    A kernel without a cached boot is booted only when ``machine`` is called, so that an error in
    the arguments is reported without waiting for a boot.
    """

    def __init__(self, image: Image, memory: int = MEMORY) -> None:
        self.image, self.memory = image, memory
        self._machine: UnicornMachine | None = None
        self._thread = threading.Thread(target=self._restore)  # Python waits for the thread at exit
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(HANDOVER)
        self._thread.start()

    def _restore(self) -> None:
        try:
            # If the restore fails, ``machine`` repeats it or boots, and reports any error.
            with contextlib.suppress(KinstError, OSError):
                path = snapshot_path(self.image, self.memory)
                if path.exists():
                    self._machine = _with_files(snapshot.restore(path, self.image, ram_path))
        finally:
            sys.setswitchinterval(self._interval)

    def machine(self) -> UnicornMachine:
        """Return the machine at its prompt, as ``booted`` does; only one call is allowed."""
        with PROGRESS.working(f"restoring the boot of {self.image.path}"):
            self._thread.join()
        machine, self._machine = self._machine, None
        return machine if machine is not None else booted(self.image, self.memory)


def unbooted(image: Image, memory: int = MEMORY) -> UnicornMachine:
    """Return a machine with the image loaded at its link address, before any execution."""
    machine = UnicornMachine(image, memory)
    machine.place_image()
    return machine
