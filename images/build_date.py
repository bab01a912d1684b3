"""When a kernel was built, which is where the guest's clock starts by default."""

import datetime
import re

from emu.arch.architectures import arch_of
from emu.devices.clock import RELEASE
from emu.elf.boot_options import MAX_DATE
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import KinstError

MOST = 1024  # number of bytes of the version string that are searched
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
UNKNOWN = int(RELEASE.timestamp())


def build_date(image: Image) -> int:
    """Return when a kernel was built, in seconds since 1970.

    The time is read from the kernel's version string and taken as UTC. Official kernels do not
    contain it; for them and for unknown kernels, the date of FreeBSD 15.0-RELEASE is returned.
    """
    boot = guest_of(image, arch_of(image).name).boot
    symbol = image.symbols.find(boot.version) if boot.version else None
    if symbol is None:
        return UNKNOWN
    try:
        text = image.virtual_to_file(symbol.address, min(symbol.size or MOST, MOST))
    except KinstError:
        return UNKNOWN
    return UNKNOWN if (built := re.search(boot.built, text)) is None else _seconds(built)


def _seconds(built: re.Match[bytes]) -> int:
    """Return the time of the groups of ``GuestBoot.built`` in seconds since 1970."""
    day, hour, minute, second, year = (
        int(built[name]) for name in ("day", "hour", "minute", "second", "year"))
    try:
        date = datetime.datetime(year, MONTHS.index(built["month"].decode()) + 1, day, hour, minute,
                                 second, tzinfo=datetime.UTC)
    except ValueError:
        return UNKNOWN
    return min(max(int(date.timestamp()), 0), MAX_DATE)
