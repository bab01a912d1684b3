"""Stacks of the guest: the callers of an instruction, with inline functions and source lines.

A caller is found by the call frame information where there is some, which is right at every
instruction, else by the chain of frame records that kernels keep (assembly, kernels without debug
data).
"""

import functools
import re
from collections.abc import Callable, Iterator

from dtrace.debug_data import Sources
from dtrace.debug_index import debug_index
from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex
from emu.errors import MemoryAccessError
from emu.machine import Machine
from emu.symbols import Symbol
from kinst.trap import TRAPS

DEFAULT_FRAMES, MAX_FRAMES = 20, 1000
PANIC = "kernel`panic+"
INDENT = " " * 14
# A frame's line: the function, the offset, and what stands behind: the source line.
LINE = re.compile(r"(?P<function>.+?)(?:\+0x[0-9a-f]+)?(?:  .*)?", re.DOTALL)
FAR = 1 << 20  # bytes from a label that say nothing any more
MASK = (1 << 64) - 1


class Stacks:
    """The stacks of one machine.

    A kernel without debug data has stacks too, of functions and offsets alone.

    :raises DebugDataError: here and later, when the debug data is damaged.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._sources = Sources(machine.image)
        self._index: DebugIndex | None = None
        if self._sources.known:
            self._index = debug_index(machine.image)
        self._texts: dict[tuple[int, bool], list[str]] = {}

    def addresses(
        self, read: Callable[[str], int], limit: int = DEFAULT_FRAMES
    ) -> Iterator[tuple[int, bool]]:
        """The instruction itself, then the return addresses, inner ones first; below a trap the
        instruction that it interrupted, and so on.

        :param read: gives a general register by name.
        :return: addresses, and whether each is a return address.
        """
        arch, image, guest = self._machine.arch, self._machine.image, self._machine.guest
        names = [*arch.dwarf_registers, arch.pc]
        registers: dict[str, int] = {name: read(name) for name in names if name}
        is_return = False
        for _ in range(limit):
            pc = registers[arch.pc]
            if is_return and pc == guest.entry_address(image):
                return  # where injected calls return to
            if not image.holds_code(pc):
                back = self._left(registers) if not is_return else None
                if back is None:
                    return
                yield pc, False
                registers, is_return = back, True
                continue
            yield pc, is_return
            try:
                if is_return and self._function(pc - 1).name in guest.trap_entries:
                    registers, is_return = self._interrupted(registers), False
                    continue
                caller = self._caller(registers, is_return)
            except MemoryAccessError:
                return
            if caller is None:
                return
            registers, is_return = caller, True

    def _left(self, registers: dict[str, int]) -> dict[str, int] | None:
        """The caller's registers where the kernel has called something that is no code, as through
        a null pointer; None: it is somebody else's, as a program's."""
        arch, machine = self._machine.arch, self._machine
        sp = registers[arch.sp]
        found = dict(registers)
        try:
            if arch.link is not None:
                found[arch.pc] = registers[arch.link]
            else:
                found[arch.pc], found[arch.sp] = machine.read_u64(sp), sp + 8 & MASK
        except MemoryAccessError:
            return None
        return found if sp >> 63 and machine.image.holds_code(found[arch.pc]) else None

    def _interrupted(self, registers: dict[str, int]) -> dict[str, int]:
        """The registers in the trap frame that the kernel's vector has built."""
        machine, layout = self._machine, self._machine.guest.trap_frame
        fields = TRAPS[machine.arch.name].names
        frame = registers[machine.arch.sp]
        return {name: layout.read(machine, frame, fields.get(name, name))
                if fields.get(name, name) in layout.fields else value
                for name, value in registers.items()}

    def _function(self, address: int) -> Symbol:
        symbols = self._machine.image.symbols
        return symbols.function_at(address) or symbols.label_at(address) or Symbol("", 0, 0, 0)

    def _caller(self, registers: dict[str, int], is_return: bool) -> dict[str, int] | None:
        """The caller's registers; None at the end of the stack."""
        arch, machine = self._machine.arch, self._machine
        pc, sp = registers[arch.pc], registers[arch.sp]
        rule = self._sources.rule(pc - is_return)
        found = dict(registers)
        if (rule is not None and rule.base < len(arch.dwarf_registers)
                and arch.dwarf_registers[rule.base]):
            frame = registers[arch.dwarf_registers[rule.base]] + rule.offset & MASK
            for number, offset in rule.saved.items():
                if number < len(arch.dwarf_registers) and arch.dwarf_registers[number]:
                    found[arch.dwarf_registers[number]] = machine.read_u64(frame + offset & MASK)
            found[arch.sp] = frame
            if rule.returns in rule.saved:
                found[arch.pc] = machine.read_u64(frame + rule.saved[rule.returns] & MASK)
            elif not is_return and arch.link is not None:
                found[arch.pc] = registers[arch.link]
            else:
                return None
            return found if frame >= sp and (frame > sp or not is_return) else None
        if not is_return and pc == self._function(pc).address:
            # At its first instruction a function has no frame of its own.
            if arch.link is not None:
                found[arch.pc] = registers[arch.link]
            else:
                found[arch.pc], found[arch.sp] = machine.read_u64(sp), sp + 8
            return found
        register, saved, returns = arch.frame_record
        frame = registers[register]
        if frame < sp:
            return None
        found[arch.pc] = machine.read_u64(frame + returns & MASK)
        found[register] = machine.read_u64(frame + saved & MASK)
        found[arch.sp] = frame + max(0, 8 + returns)
        return found

    def text(self, read: Callable[[str], int], limit: int = DEFAULT_FRAMES) -> list[str]:
        """A line for each frame, as stack() of dtrace(1) prints it, inline ones among them."""
        return [INDENT + line for key in self.addresses(read, limit) for line in self.lines(*key)]

    def lines(self, address: int, is_return: bool) -> list[str]:
        """The lines of one frame, inner ones first."""
        key = address, is_return
        if key not in self._texts:
            self._texts[key] = list(self._describe(address, is_return))
        return self._texts[key]

    def _describe(self, address: int, is_return: bool) -> Iterator[str]:
        at = address - is_return  # the call, not what follows it
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
    """The function of a frame's line: ``kernel`strlen`` of ``kernel`strlen+0x4  string.c:9``."""
    found = LINE.fullmatch(line)
    return line if found is None else found["function"]


def failure(machine: Machine) -> list[str]:
    """The stack of a machine that stopped where it should not; of a panic, what called it."""
    try:
        lines = Stacks(machine).text(machine.read_register, 2 * DEFAULT_FRAMES)
        panics = [n for n, line in enumerate(lines) if line.lstrip().startswith(PANIC)]
        return lines[panics[-1] + 1 if panics else 0 :][:DEFAULT_FRAMES]
    except DebugDataError as error:
        return [f"no stack: {error}"]
