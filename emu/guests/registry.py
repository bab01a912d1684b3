"""The guests there are."""

from emu.arch.parts import Parts
from emu.elf.image import Image
from emu.guest.guest import Guest
from emu.guests.freebsd import kernel
from emu.guests.illumos.amd64.guest import illumos
from emu.guests.teaching import guest as teaching_kernel
from emu.guests.teaching.guest import teaching

# Folders of guests, each with one for each architecture: what boots are made by.
FREEBSD: Parts[Guest] = Parts("emu.guests.freebsd.{}.guest", "GUEST")
# Flavours of the teaching kernel, by architecture: they are recognized before it.
FLAVOURS = {"amd64": (illumos,)}
PROMPTS = (*kernel.PROMPTS, *teaching_kernel.PROMPTS)  # of all of them


def guests(arch: str) -> tuple[Guest, ...]:
    """Those that run on an architecture; the last is what no other is recognized as."""
    flavours = (flavour(FREEBSD[arch]) for flavour in FLAVOURS.get(arch, ()))
    return *flavours, teaching(FREEBSD[arch]), FREEBSD[arch]


def guest_of(image: Image, arch: str) -> Guest:
    """The guest that an image is, on that architecture."""
    *known, last = guests(arch)
    return next((guest for guest in known
                 if image.symbols.find(guest.recognized_by) is not None), last)
