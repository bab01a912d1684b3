"""Registry of the supported guests."""

from emu.arch.architectures import arch_of
from emu.arch.parts import Parts
from emu.elf.image import Image
from emu.guest.guest import Guest
from emu.guests.freebsd import kernel
from emu.guests.freebsd.partitions import root_at
from emu.guests.illumos.amd64.guest import illumos
from emu.guests.teaching import guest as teaching_kernel
from emu.guests.teaching.guest import teaching
from emu.host.errors import KinstError
from emu.host.input_file import Content

# FreeBSD guests, from which other guests are derived, keyed by architecture.
FREEBSD: Parts[Guest] = Parts("emu.guests.freebsd.{}.guest", "GUEST")
# Teaching kernel variants, keyed by architecture; ``guest_of`` tries them before the plain kernel.
FLAVOURS = {"amd64": (illumos,)}
PROMPTS = (*kernel.PROMPTS, *teaching_kernel.PROMPTS)  # prompts of all guests


def guests(arch: str) -> tuple[Guest, ...]:
    """Return the guests on an architecture; the last one is the default for unknown kernels."""
    flavours = (flavour(FREEBSD[arch]) for flavour in FLAVOURS.get(arch, ()))
    return *flavours, teaching(FREEBSD[arch]), FREEBSD[arch]


def guest_of(image: Image, arch: str) -> Guest:
    """Return the guest that recognizes an image on an architecture."""
    *known, last = guests(arch)
    return next((guest for guest in known
                 if image.symbols.find(guest.recognized_by) is not None), last)


def check_cpus(image: Image) -> None:
    """Check that a kernel can use several CPUs.

    :raises KinstError: if it was built without the option for them.
    """
    needed = guest_of(image, arch_of(image).name).boot.several_cpus
    if needed is not None and image.symbols.find(needed[1]) is None:
        raise KinstError(f"{image.path}: runs on one CPU, because it was built without {needed[0]}")


def root_offset(disk: Content) -> int:
    """Return the offset in bytes of the root file system on a disk."""
    return root_at(disk)[1]
