"""Stacks of the guest: the callers of an instruction, with inline functions and source lines.

A caller is found by the call frame information if there is any, otherwise by the chain of frame
records that kernels keep (for assembly and for kernels without debug data). Where neither describes
the instruction, as in epilogues of arm64 and riscv64 and in prologues without debug data, the code
itself is followed (``kinst/code/frame.py``).
"""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.stacks.frame_step import FrameStep, find_step
from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from emu.elf.symbols import Symbol
from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.code.cold_parts import is_cold
from kinst.code.convention import CONVENTIONS
from kinst.code.frame import FrameFollower
from kinst.relocation.trap import TRAPS, trap_of

DEFAULT_FRAMES, MAX_FRAMES = 20, 1000
PANIC = "kernel`panic+"
INDENT = " " * 14
# A line of a stack: function, offset and source line.
LINE = re.compile(r"(?P<function>.+?)(?:\+0x[0-9a-f]+)?(?:  .*)?", re.DOTALL)
# An address at least this many bytes after a symbol is shown without the symbol's name.
FAR = 1 << 20
MASK = (1 << 64) - 1
MOST_STEPS = 1 << 17  # maximum number of cached steps


@dataclass(frozen=True)
class StackFrame:
    """Frame of a stack.

    :param pc: the current address, or the address to which the callee returns.
    :param is_return: whether it is a return address.
    :param registers: general registers by name.
    :param unknown: those of them that hold values of an inner frame, because a callee may have
        overwritten them.
    """

    pc: int
    is_return: bool
    registers: dict[str, int]
    unknown: frozenset[str] = frozenset()


def trap_step(machine: Machine) -> FrameStep:
    """Return the step from the kernel's trap handler to the code that the trap interrupted."""
    arch, layout = machine.arch, machine.guest.traps.trap_frame.fields
    field = TRAPS[arch.name].frame.field
    names = [name for name in (*arch.dwarf_registers, arch.pc) if name]
    saved = tuple((name, *layout[field(name)]) for name in names if field(name) in layout)
    return FrameStep(arch.sp, 0, saved, trap=True)


class Stacks:
    """Stack walker for one machine.

    Without debug data, frames have only functions and offsets.

    :raises DebugDataError: if the debug data is damaged; methods may raise this, too.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._sources = Sources(machine.image)
        self._index: DebugIndex | None = None
        if self._sources.known:
            self._index = debug_index(machine.image)
        arch = machine.arch
        self.follower = FrameFollower(arch, trap_of(machine.guest, arch.name), self.code,
                                       self._function_begins)
        self._texts: dict[tuple[int, bool], list[str]] = {}
        self._steps: dict[tuple[int, bool], FrameStep | None] = {}

    def _function_begins(self, address: int) -> bool:
        """Return whether a function other than a ``NAME.cold`` part begins at an address."""
        function = self._machine.image.symbols.function_at(address)
        return (function is not None and function.address == address
                and not is_cold(function.name))

    def addresses(
        self, read: Callable[[str], int], limit: int = DEFAULT_FRAMES, returned: bool = False
    ) -> Iterator[tuple[int, bool]]:
        """Yield the addresses of frames, innermost first: the current pc, then return addresses.

        After a trap, the instruction that it interrupted follows, then its callers.

        :param read: returns a general register by name.
        :param returned: whether a call has just returned to the first instruction.
        :return: addresses, and whether each is a return address.
        """
        for frame in self.frames(read, limit, returned):
            yield frame.pc, frame.is_return

    def frames(self, read: Callable[[str], int], limit: int = DEFAULT_FRAMES,
               returned: bool = False) -> Iterator[StackFrame]:
        """Yield frames, innermost first; see ``addresses``."""
        arch, image, guest = self._machine.arch, self._machine.image, self._machine.guest
        names = [*arch.dwarf_registers, arch.pc]
        registers: dict[str, int] = {name: read(name) for name in names if name}
        is_return, unknown = returned, frozenset[str]()
        overwritten = registers.keys() - CONVENTIONS[arch.name].preserved - {arch.pc}
        for _ in range(limit):
            pc = registers[arch.pc]
            if is_return and pc == guest.entry_address(image):
                return  # injected calls return to this address
            if not image.holds_code(pc):
                back = self._left(registers) if not is_return else None
                if back is None:
                    return
                yield StackFrame(pc, False, registers, unknown)
                registers, is_return, unknown = back, True, frozenset(overwritten)
                continue
            frame = StackFrame(pc, is_return, registers, unknown)
            yield frame
            step, caller = self.step(pc, is_return), self.caller(frame)
            if step is None or caller is None:
                return
            registers, is_return = caller, not step.trap
            restored = {name for name, _offset, _size in step.saved}
            unknown = (unknown if step.trap else unknown | overwritten) - restored

    def caller(self, frame: StackFrame) -> dict[str, int] | None:
        """Return the registers of a frame's caller, with the address to which the frame returns.

        None: the stack ends here, or the caller is unknown.
        """
        step = self.step(frame.pc, frame.is_return)
        try:
            return None if step is None else self._caller(step, frame.registers)
        except MemoryAccessError:
            return None

    def _left(self, registers: dict[str, int]) -> dict[str, int] | None:
        """Return the caller's registers after the kernel called an address without code.

        This happens with a null function pointer, for example. None: the kernel did not call it, as
        when the address belongs to a user program.
        """
        arch, machine = self._machine.arch, self._machine
        sp = registers[arch.sp]
        caller = dict(registers)
        try:
            if arch.link is not None:
                caller[arch.pc] = registers[arch.link]
            else:
                caller[arch.pc], caller[arch.sp] = machine.read_u64(sp), sp + 8 & MASK
        except MemoryAccessError:
            return None
        return caller if sp >> 63 and machine.image.holds_code(caller[arch.pc]) else None

    def _function(self, address: int) -> Symbol:
        symbols = self._machine.image.symbols
        return symbols.function_at(address) or symbols.label_at(address) or Symbol("", 0, 0, 0)

    def _caller(self, step: FrameStep, registers: dict[str, int]) -> dict[str, int] | None:
        """Return the registers of a frame's caller, or None if the stack ends here."""
        arch, machine = self._machine.arch, self._machine
        frame, sp = registers[step.base] + step.offset & MASK, registers[arch.sp]
        if not step.trap and (frame - step.floor & MASK < sp or (step.above and frame == sp)):
            return None
        caller = registers | {
            name: int.from_bytes(machine.read(frame + offset & MASK, size), "little")
            for name, offset, size in step.saved}
        if step.link:
            caller[arch.pc] = registers[step.link]
        if not step.trap:
            caller[arch.sp] = frame
        return caller

    def step(self, pc: int, is_return: bool) -> FrameStep | None:
        """Return the step from a kernel address to its caller, or None at the end of the stack.

        :param is_return: whether the address is a return address.
        """
        key = pc, is_return
        if key not in self._steps:
            if len(self._steps) > MOST_STEPS:
                self._steps.clear()
            self._steps[key] = self._find_step(pc, is_return)
        return self._steps[key]

    def _find_step(self, pc: int, is_return: bool) -> FrameStep | None:
        symbols = self._machine.image.symbols
        if is_return and symbols.entry_at(pc - 1, self._machine.guest.traps.trap_entries):
            return trap_step(self._machine)
        return find_step(self._machine.arch, self.follower, pc, is_return,
                         self._sources.rule(pc - is_return), symbols.function_at(pc),
                         pc == self._function(pc).address)

    def code(self, address: int, size: int) -> bytes:
        """Return the original code at an address, or empty bytes if the address is not mapped."""
        machine = self._machine
        try:
            code = bytearray(machine.read(address, size))
        except MemoryAccessError:
            return b""
        for at in range(size):
            original = machine.original(address + at)[: size - at]
            code[at : at + len(original)] = original
        return bytes(code)

    def text(self, read: Callable[[str], int], limit: int = DEFAULT_FRAMES,
             returned: bool = False) -> list[str]:
        """Format a stack like stack() in dtrace(1), but with inline functions; return the lines.

        :param returned: see ``addresses``.
        """
        return [INDENT + line for key in self.addresses(read, limit, returned)
                for line in self.lines(*key)]

    def lines(self, address: int, is_return: bool) -> list[str]:
        """Return the lines of one frame, innermost inline function first."""
        key = address, is_return
        if key not in self._texts:
            self._texts[key] = list(self._describe(address, is_return))
        return self._texts[key]

    def _describe(self, address: int, is_return: bool) -> Iterator[str]:
        at = address - is_return  # for a return address, use an address within the call instruction
        function = self._function(at)
        offset = address - function.address
        where = (f"{function.module}`{function.name}+{offset:#x}" if function.name and offset < FAR
                 else f"{address:#x}")
        if self._index is None:
            yield where
            return
        line = self._sources.line(at)
        for frame in self._index.stack(at):
            if frame.inlined:
                yield f"{function.module}`{frame.name} [inlined]  {line}"
                line = self._sources.call(self._index, frame)
        yield where + ("" if line == "?" else f"  {line}")


@functools.lru_cache(maxsize=1 << 16)
def function_of(line: str) -> str:
    """Return the function in a line: ``kernel`strlen`` for ``kernel`strlen+0x4  string.c:9``."""
    match = LINE.fullmatch(line)
    return line if match is None else match["function"]


def failure(machine: Machine) -> list[str]:
    """Return the stack of a machine that stopped unexpectedly.

    After a panic, the stack begins with the caller of panic().
    """
    try:
        lines = Stacks(machine).text(machine.read_register, 2 * DEFAULT_FRAMES)
        panics = [n for n, line in enumerate(lines) if line.lstrip().startswith(PANIC)]
        return lines[panics[-1] + 1 if panics else 0 :][:DEFAULT_FRAMES]
    except DebugDataError as error:
        return [f"stack not available: {error}"]
