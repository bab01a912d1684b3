"""A virtio disk that is empty until its content is inserted.

A system can then be booted once for all contents, and the guest reads the content afterwards, as it
would read a medium that someone has put into a drive.
"""

from typing import Any

from emu.devices.device import Bus, Line
from emu.devices.virtio_block import VirtioBlock
from emu.host.errors import OtherContentError
from emu.host.input_file import Content

CAPACITY = 1 << 30  # size of the disk in bytes; it reads as zeros behind the content


class LateDisk(VirtioBlock):
    """Virtio block device whose content is inserted later.

    :param late: the content, a whole number of sectors and at most ``CAPACITY`` bytes.
    :param digest: digest of the content.
    """

    STATE = (*VirtioBlock.STATE, "inserted")

    def __init__(self, bus: Bus, name: str, late: Content, digest: str, line: Line) -> None:
        super().__init__(bus, name, memoryview(b""), line, CAPACITY)
        self._late, self._digest = late, digest
        self.inserted = False

    def insert(self) -> None:
        """Insert the content; the device has read as zeros before."""
        self._content, self.inserted = self._late, True

    def state(self) -> dict[str, Any]:
        return super().state() | {"digest": self._digest if self.inserted else ""}

    def restore(self, state: dict[str, Any]) -> None:
        if state["inserted"] and state["digest"] != self._digest:
            raise OtherContentError("the state belongs to other files in /files; give the files as "
                                    "they were")
        super().restore(state)
        self._content = self._late if self.inserted else memoryview(b"")
