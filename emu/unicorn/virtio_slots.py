"""The virtio devices of a machine, in the order of their addresses and interrupts on every board.

The disks come first, so that other devices do not change the disks' places.
"""

from collections.abc import Callable
from dataclasses import dataclass

from emu.devices.device import Bus, Line
from emu.devices.late_disk import LateDisk
from emu.devices.virtio_block import VirtioBlock
from emu.devices.virtio_device import VirtioDevice
from emu.devices.virtio_entropy import VirtioEntropy
from emu.devices.virtio_net import VirtioNet
from emu.elf.boot_options import WIRE, BootOptions, Network
from emu.network.link import Link

Interrupt = Callable[[int], Line]  # slot -> its interrupt line


@dataclass(frozen=True)
class Slot:
    """A virtio device at its place.

    :param name: unique name of the device among the board's devices.
    :param kind: name of the part of a snapshot that has the device's state.
    """

    name: str
    kind: str
    device: VirtioDevice


def virtio_slots(options: BootOptions, bus: Bus, interrupt: Interrupt) -> tuple[Slot, ...]:
    """Return the virtio devices that the boot options ask for; slot n has interrupt n."""
    slots = [Slot(f"disk{i}", "block", VirtioBlock(bus, f"disk{i}", image.content, interrupt(i)))
             for i, image in enumerate(options.disks)]
    if options.files is not None:
        late = LateDisk(bus, "files", options.files.content, options.files.digest,
                        interrupt(len(slots)))
        slots.append(Slot("files", "files", late))
    if options.network is not None:
        link = _link(options.network)
        slots.append(Slot("net0", "net", VirtioNet(bus, "net0", link, interrupt(len(slots)))))
    if options.entropy is not None:
        seed = options.entropy.encode()
        slots.append(Slot("entropy", "entropy",
                          VirtioEntropy(bus, "entropy", seed, interrupt(len(slots)))))
    return tuple(slots)


def disks_in(slots: tuple[Slot, ...]) -> tuple[VirtioBlock, ...]:
    """Return the disks in their order."""
    return tuple(slot.device for slot in slots if isinstance(slot.device, VirtioBlock)
                 and not isinstance(slot.device, LateDisk))


def files_in(slots: tuple[Slot, ...]) -> LateDisk | None:
    """Return the disk whose content is inserted later, or None."""
    return next((slot.device for slot in slots if isinstance(slot.device, LateDisk)), None)


def network_in(slots: tuple[Slot, ...]) -> VirtioNet | None:
    """Return the network device, or None."""
    return next((slot.device for slot in slots if isinstance(slot.device, VirtioNet)), None)


def _link(network: Network) -> Link:
    if network.kind == WIRE:
        return Link()
    from emu.network.peer import Peer  # deferred, because the import of dpkt is slow

    return Peer({file.name: file.content for file in network.files}, network.digest)
