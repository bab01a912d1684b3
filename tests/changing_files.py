"""Kernel, module and disk files that change while machines use them."""

import itertools
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emu.elf.image import Image
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import boot_to_prompt, booted, settle_at_reader
from images.systems import with_disks

# contents of the kernel, module and disk files; empty for an absent file
Contents = tuple[bytes, bytes, bytes]


def opened(kernel: Path, module: Path | None, disk: Path | None) -> Image:
    """Open a kernel, an optional module and an optional disk as one image."""
    image = catalog.find(str(kernel), [] if module is None else [str(module)])
    return with_disks(image, [] if disk is None else [disk])


@dataclass
class Files:
    """A kernel, a module and a disk file that change at random while machines boot from them.

    The files are replaced and patched in place. An image must boot the contents that the files had
    when it was opened, with a cold and with a warm cache. ``once`` defines the operations. Changes
    to disks of more than 64 MiB are an error and tested in tests/emu/host/test_input_file.py.

    :param folder: an empty directory for the files and the cache
    """

    folder: Path
    kernels: Sequence[bytes]
    modules: Sequence[bytes]
    disks: Sequence[bytes] = ()
    memory: int = 64 << 20
    digests: dict[Contents, str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._paths = [self.folder / name for name in ("kernel", "mine.ko", "disk")]
        self._contents = (self.kernels, self.modules, self.disks)
        self.digests = self._expected()
        self._begin()

    def _begin(self) -> None:
        """Restore the initial contents of the files and discard all opened images."""
        for path, contents in zip(self._paths, self._contents, strict=True):
            path.unlink(missing_ok=True)
            path.write_bytes(contents[0] if contents else b"")
        self._opened: list[tuple[Image, Contents]] = []

    def _expected(self) -> dict[Contents, str]:
        """Return the digest of a booted machine for each combination of file contents.

        These boots use separate files and no cache.
        """
        digests = {}
        for number, contents in enumerate(itertools.product(
                self.kernels, (b"", *self.modules), (b"", *self.disks))):
            folder = self.folder / f"{number}"
            folder.mkdir()
            paths = [folder / path.name for path in self._paths]
            for path, content in zip(paths, contents, strict=True):
                path.write_bytes(content)
            kernel, module, disk = (path if content else None
                                    for path, content in zip(paths, contents, strict=True))
            assert kernel is not None
            machine = UnicornMachine(opened(kernel, module, disk), self.memory)
            machine.boot()
            stop = boot_to_prompt(machine)
            if stop.detail != machine.guest.boot.shell_prompt:
                settle_at_reader(machine)
            digests[contents] = machine.digest()
            shutil.rmtree(folder)
        assert len(set(digests.values())) == len(digests)
        return digests

    def run(self, count: int, seed: int) -> None:
        """Run random operations; reset the files before every 100 operations."""
        generator = random.Random(seed)
        for number in range(count):
            if number % 100 == 0:
                self._begin()
            self.done[self.once(generator)] += 1

    def once(self, generator: random.Random) -> str:
        """Run one random operation and return its name."""
        name = generator.choice(("replace", "patch", "open", "open", "boot", "boot", "boot",
                                 "empty the cache"))
        match name:
            case "replace" | "patch":
                index = generator.choice([n for n, some in enumerate(self._contents) if some])
                self._change(self._paths[index], generator.choice(self._contents[index]),
                             name == "patch")
            case "open":
                self._open(generator.random() < 0.5, generator.random() < 0.5)
            case "boot" if self._opened:
                image, contents = generator.choice(self._opened)
                assert booted(image, self.memory).digest() == self.digests[contents]
            case "empty the cache" if generator.random() < 0.2:
                shutil.rmtree(os.environ["KINST_CACHE"], ignore_errors=True)
            case _:
                return "nothing"
        return name

    def _change(self, path: Path, content: bytes, in_place: bool) -> None:
        if in_place:
            with path.open("r+b") as file:
                file.write(content)
        else:
            other = self.folder / "other"
            other.write_bytes(content)
            os.replace(other, path)

    def _open(self, with_module: bool, with_disk: bool) -> None:
        kernel, module, disk = self._paths
        wanted = (kernel, module if with_module else None,
                  disk if with_disk and self.disks else None)
        contents = [b"" if path is None else path.read_bytes() for path in wanted]
        self._opened.append((opened(*wanted), (contents[0], contents[1], contents[2])))
