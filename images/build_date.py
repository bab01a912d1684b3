"""When a kernel was built, which is where the guest's clock starts by default."""

import datetime
import re

from emu.devices.clock import RELEASE
from emu.elf.boot_options import MAX_DATE
from emu.elf.image import Image
from emu.host.errors import KinstError

VERSION, MOST = "version", 1024  # the kernel's version string, and bytes of it that are searched
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
BUILT = re.compile(rb"[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) "
                   rb"[A-Z]{1,5} (\d{4})")


def build_date(image: Image) -> int:
    """Return when a kernel was built, in seconds since 1970.

    The time is read from the kernel's version string and taken as UTC. Official kernels do not
    contain it; for them and for unknown kernels, the date of FreeBSD 15.0-RELEASE is returned.
    """
    symbol = image.symbols.find(VERSION)
    if symbol is not None:
        try:
            text = image.virtual_to_file(symbol.address, min(symbol.size or MOST, MOST))
        except KinstError:
            text = b""
        if built := BUILT.search(text):
            month, *numbers = built.groups()
            day, hour, minute, second, year = (int(number) for number in numbers)
            try:
                date = datetime.datetime(year, MONTHS.index(month.decode()) + 1, day, hour, minute,
                                         second, tzinfo=datetime.UTC)
            except ValueError:
                return int(RELEASE.timestamp())
            return min(max(int(date.timestamp()), 0), MAX_DATE)
    return int(RELEASE.timestamp())
