"""Systems on disks: kernels with the disks, boot flags and clock that a system needs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emu.arch.architectures import arch_of
from emu.elf.boot_options import MAX_DATE, BootOptions, boot_options
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import KinstError
from images import catalog
from images.build_date import build_date
from images.known_digests import with_known_digests

NO_CLOCK = -1  # date of a machine without a clock


def dated(image: Image, date: int | None) -> Image:
    """Return the image with a real-time clock if a date was given or there is a disk.

    :raises KinstError: when the clocks cannot show the date.
    """
    if date is None and image.options.disks:
        date = build_date(image)
    if date in (None, NO_CLOCK):
        return image
    if type(date) is not int or not 0 <= date <= MAX_DATE:
        raise KinstError(f"date {date!r}: must be a number of seconds from 0 to {MAX_DATE}")
    return replace(image, options=replace(image.options, date=date))


def with_disks(image: Image, disks: Sequence[Path], base: bool = False, single: bool = False,
               date: int | None = None) -> Image:
    """Return the image with the given disks attached.

    :param base: whether to attach the base system that was fetched with the kernel as first disk.
    :param single: whether to boot the system on the first disk to single-user mode.
    :param date: time of day at the start of the boot, in seconds since 1970; None: with a disk,
        when the kernel was built, otherwise no clock.
    :raises KinstError: when a disk cannot be used, or the base system was not fetched.
    """
    flags = single_user(bool(disks) or base) if single else ""
    if base:
        disks = [catalog.base(image), *disks]
    if disks:
        image = with_system(image, boot_options([], flags, None, disks))
    return dated(image, date)


def single_user(disks: bool) -> str:
    """Return the boot flag for single-user mode.

    :param disks: whether there is a disk.
    :raises KinstError: when there is none.
    """
    if not disks:
        raise KinstError("single-user mode needs a system on a disk, such as that of --base")
    return "s"


def with_system(image: Image, options: BootOptions) -> Image:
    """Return the image with boot options.

    :raises KinstError: when a teaching kernel is to have a disk.
    """
    if options.programs and not guest_of(image, arch_of(image).name).boot.shell_prompt:
        what = "--disk" if options.disks else "--memory-disk"
        raise KinstError(f"{what}: the teaching kernel has no file systems; give a FreeBSD "
                         "kernel")
    return replace(image, options=with_known_digests(options))
