"""Frames between a signal handler and the code that the signal interrupted."""

from dtrace.stacks.frame_step import FrameStep
from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.arch.arch import Arch
from emu.guest.guest import VirtualMemory
from emu.guest.user_memory import SignalFrame
from emu.host.errors import MemoryAccessError

MOST_CODE = 1 << 16  # maximum size of the code that signal handlers return to, in bytes


class SignalFrames:
    """Reader of signal frames.

    :ivar saved: (register, offset, 8) of each register of the interrupted code, from the stack
        pointer at the start of the trampoline.
    :raises MemberError: if the kernel's types do not describe signal frames.
    """

    def __init__(self, memory: VirtualMemory, types: Types, members: SignalFrame, arch: Arch
                 ) -> None:
        self._memory, self._sp = memory, arch.sp
        self._space, self._page, self._system, self._code, self._inside, self._size = (
            offset_of(types, f"struct {structure}", member) for structure, member in (
                members.space, members.page, members.system, members.code, members.inside,
                members.size))
        structure, context = members.frame
        self.saved = tuple(
            (name, offset_of(types, f"struct {structure}", f"{context}.{member}") + 8 * index, 8)
            for name, (member, index) in members.registers.items())

    def trampoline(self, process: int) -> tuple[int, int]:
        """Return the first address of a process's signal trampoline, and that after the last one.

        :param process: address of the process's structure.
        """
        try:
            page = self._word(self._word(process + self._space) + self._page)
            system = self._word(process + self._system)
            code, size = self._word(system + self._code), self._word(system + self._size)
            inside = self._number(system + self._inside, 4)
            if not inside:
                size = self._number(size, 4)
        except MemoryAccessError:
            return 0, 0
        begin, end = page + code, page + code - inside + min(size, MOST_CODE)
        return (begin, end) if page and begin < end else (0, 0)

    def step(self, lowered: int) -> FrameStep:
        """Return the step from the trampoline to the interrupted code.

        :param lowered: bytes by which the trampoline has lowered the stack pointer so far.
        """
        return FrameStep(self._sp, lowered, self.saved, trap=True)

    def _word(self, address: int) -> int:
        return self._number(address, 8)

    def _number(self, address: int, size: int) -> int:
        return int.from_bytes(self._memory.read(address, size), "little")


def signal_frames(memory: VirtualMemory, types: Types | None, members: SignalFrame | None,
                  arch: Arch) -> SignalFrames | None:
    """Return a reader of signal frames, or None if the kernel's types do not describe them."""
    if types is None or members is None:
        return None
    try:
        return SignalFrames(memory, types, members, arch)
    except MemberError:
        return None
