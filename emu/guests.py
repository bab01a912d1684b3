"""The guests there are."""

from emu.elf import Image
from emu.guest import Guest
from emu.parts import Parts
from emu.teaching import teaching

FREEBSD: Parts[Guest] = Parts("emu.freebsd.{}.guest", "GUEST")


def guests(arch: str) -> tuple[Guest, ...]:
    """Those that run on an architecture; the last is what no other is recognized as."""
    return teaching(FREEBSD[arch]), FREEBSD[arch]


def guest_of(image: Image, arch: str) -> Guest:
    """The guest that an image is, on that architecture."""
    *known, last = guests(arch)
    return next((guest for guest in known
                 if image.symbols.find(guest.recognized_by) is not None), last)
