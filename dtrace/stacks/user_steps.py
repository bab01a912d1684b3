"""Steps from the code of a user program to its caller.

The call frame information of the program's file describes them.  Code without it is followed from
the start of its function, or to its end.  Where neither is possible, the frame record is used.
"""

from collections.abc import Callable
from typing import NamedTuple

from dtrace.bpf.layout import StepKind
from dtrace.stacks.frame_step import FrameStep, find_step, record_step
from dtrace.stacks.user_programs import ADDRESS, UserPrograms
from dwarf.debug_file import DebugDataError
from dwarf.eh_frames import EhFrames
from dwarf.frames import Rule
from emu.arch.arch import Arch
from emu.elf.program import ProgramFile
from emu.elf.symbols import Symbol
from emu.host.errors import ImageError, KinstError
from kinst.code.convention import CONVENTIONS
from kinst.code.frame import FrameFollower
from kinst.code.stack_effect import STACK_EFFECTS
from kinst.relocation.trap import GuestTrap

MOST_STEPS = 1 << 16  # maximum number of cached steps
MOST_TRAMPOLINES = 1 << 12  # maximum number of stack words that are remembered
PLT = ".plt"  # section with the procedure linkage table
LONGEST = 16  # maximum length of an instruction in bytes
WORD, MASK = 8, (1 << 64) - 1


class UserStep(NamedTuple):
    """Step from an address of a user program to its caller.

    :param kind: ``ON``, ``GUESS`` and ``SIGNAL`` have a step; ``RECORD`` follows the frame record.
    :param called: whether the instruction before the address is a call.
    :param kept: whether the step is the same for each process with the number in the stack word.
    """

    kind: StepKind
    step: FrameStep | None
    called: bool
    kept: bool = True


class UserSteps:
    """Finder of steps, with a cache.

    :param trampoline: returns the first address of the code to which signal handlers of the running
        process return, the address after it, and the step from there, given by how many bytes it
        has lowered the stack pointer; None: unknown.
    :param read: reads code of the running process; returns no bytes where no memory is mapped.
    """

    def __init__(self, arch: Arch, trap: GuestTrap, programs: UserPrograms,
                 trampoline: Callable[[], tuple[int, int, Callable[[int], FrameStep]] | None],
                 read: Callable[[int, int], bytes]) -> None:
        self._arch, self._trap, self._programs = arch, trap, programs
        self._trampoline, self._read = trampoline, read
        self._follower = FrameFollower(arch, trap, read, lambda _address: False)
        self._steps: dict[tuple[int, bool], UserStep] = {}
        self._codes: dict[ProgramFile, FileSteps] = {}
        self._changes = programs.changes

    def step(self, word: int, is_return: bool) -> UserStep:
        """Return the step from a stack word of ``UserPrograms`` to its caller."""
        if self._changes != self._programs.changes or len(self._steps) > MOST_STEPS:
            self._changes = self._programs.changes
            self._steps.clear()
        key = word, is_return
        if key in self._steps:
            return self._steps[key]
        found = self._find(word, is_return)
        if found.kept:
            self._steps[key] = found
        return found

    def _find(self, word: int, is_return: bool) -> UserStep:
        place = self._programs.place(word)
        if place is None:
            return self._outside(word, is_return)
        file, moved = place
        if file not in self._codes:
            self._codes[file] = FileSteps(self._arch, self._trap, file)
        return self._codes[file].step((word & ADDRESS) - moved, is_return)

    def _outside(self, word: int, is_return: bool) -> UserStep:
        """Return the step from code that is in no known file."""
        known, pc, kept = self._trampoline(), word & ADDRESS, self._programs.belongs_to_one(word)
        if known is not None and known[0] <= pc < known[1]:
            begin, _end, step = known
            if len(self._programs.trampolines) < MOST_TRAMPOLINES:
                self._programs.trampolines.add(word)
            lowered = lowered_by(self._arch, self._trap, self._read, begin, pc)
            return UserStep(StepKind.SIGNAL, step(lowered), True, kept)
        called = is_return and self._follower.follows_call(pc)
        return UserStep(StepKind.RECORD, None, called, kept)


class FileSteps:
    """Finder of steps in one program or shared object; addresses are those in the file.

    Damaged call frame information counts as none.
    """

    def __init__(self, arch: Arch, trap: GuestTrap, file: ProgramFile) -> None:
        self._arch, self._trap, self._file = arch, trap, file
        self._plt = file.section_range(PLT)
        try:
            self._frames = EhFrames(*file.call_frames())
        except KinstError:
            self._frames = EhFrames(b"", 0)
        self._follower = FrameFollower(arch, trap, self._code, self._function_begins)

    def step(self, pc: int, is_return: bool) -> UserStep:
        """Return the step from an address to its caller."""
        rule = self._rule(pc - is_return)
        function = self._function(pc - is_return)
        called = is_return and self._follower.follows_call(pc)
        if rule is None and not is_return and self._plt[0] <= pc < self._plt[1]:
            return UserStep(StepKind.GUESS, self._in_plt(pc), called)
        step = find_step(self._arch, self._follower, pc, is_return, rule, function,
                         function is not None and function.address == pc)
        if step is None:
            return UserStep(StepKind.LAST, None, called)
        if rule is not None:
            return UserStep(StepKind.ON, step, called)
        if step != record_step(self._arch):
            return UserStep(StepKind.GUESS, step, called)
        frame = None if function is None else self._follower.in_body(function, pc, is_return)
        if frame is None:
            return UserStep(StepKind.RECORD, None, called)
        return UserStep(StepKind.GUESS, FrameStep(frame.base, frame.offset, tuple(
            (register, at, WORD) for register, at in frame.saved), frame.link), called)

    def _rule(self, address: int) -> Rule | None:
        known = self._arch.dwarf_registers
        try:
            rule = self._frames.rule(address)
        except DebugDataError:
            return None
        return rule if rule is not None and known[rule.base : rule.base + 1] not in (
            (), ("",)) else None

    def _in_plt(self, pc: int) -> FrameStep:
        """Return the step from the procedure linkage table, which has no frame of its own."""
        arch, begin, table = self._arch, self._plt[0], CONVENTIONS[self._arch.name].linkage
        first = pc < begin + table.first
        entry = begin if first else pc - (pc - begin - table.first) % table.entry
        lowered = lowered_by(arch, self._trap, self._code, entry, pc)
        if first:
            lowered += table.pushed
        if arch.link is not None:
            return FrameStep(arch.sp, lowered, (), arch.link)
        return FrameStep(arch.sp, lowered + WORD, ((arch.pc, -WORD, WORD),))

    def _function(self, address: int) -> Symbol | None:
        """Return the function at an address, without a name if only its frames are described."""
        function = self._file.symbols.function_at(address)
        described = None if function is not None else self._frames.range_at(address)
        return function if described is None else Symbol(
            "", described[0], described[1] - described[0], 0)

    def _code(self, address: int, size: int) -> bytes:
        while size:
            try:
                return self._file.code(Symbol("", address, size, 0))
            except ImageError:
                size -= 1
        return b""

    def _function_begins(self, address: int) -> bool:
        """Return whether a jump to an address is a tail call."""
        function = self._function(address)
        return self._plt[0] <= address < self._plt[1] or (
            function is not None and function.address == address)


def lowered_by(arch: Arch, trap: GuestTrap, read: Callable[[int, int], bytes], begin: int, pc: int
               ) -> int:
    """Return by how many bytes the instructions from one address to another lower the stack."""
    lowered = 0
    while begin < pc:
        code = read(begin, LONGEST)
        length, _verdict = trap.instructions.classify(code, begin)
        if not 0 < length <= len(code):
            break
        lowered -= STACK_EFFECTS[arch.name](code[:length]).change
        begin += length
    return lowered


def walk(pc: int, registers: dict[str, int], arch: Arch, steps: Callable[[int, bool], UserStep],
         read: Callable[[int], int | None], most: int, returned: bool = False) -> list[int]:
    """Return the addresses of a user stack, innermost first.

    :param registers: general registers by name.
    :param steps: returns the step from an address; see ``UserSteps.step``.
    :param read: returns a word of the program's memory, or None if no memory is mapped there.
    :param most: maximum number of addresses.
    :param returned: whether ``pc`` is a return address.
    """
    addresses: list[int] = []
    registers = dict(registers)
    is_return, guessed = returned, False
    while 0 < pc <= ADDRESS and len(addresses) < most:
        kind, step, called, _kept = steps(pc, is_return)
        if guessed and not called:
            break
        addresses.append(pc)
        guessed = kind in (StepKind.RECORD, StepKind.GUESS)
        if kind == StepKind.LAST:
            break
        if step is None:
            register, saved, returns = arch.frame_record
            frame = registers[register]
            if not frame or frame & 7 or frame > ADDRESS:
                break
            caller, outer = read(frame + returns & MASK), read(frame + saved & MASK)
            if not caller or caller > ADDRESS or outer is None:
                break
            if 0 < outer <= frame:
                if steps(caller, True).called:
                    addresses.append(caller)
                break
            pc, is_return = caller, True
            registers |= {register: outer, arch.sp: frame + max(0, WORD + returns)}
            continue
        frame = registers[step.base] + step.offset & MASK
        if frame > ADDRESS:
            break
        if not step.trap and (frame < registers[arch.sp] or (step.above and
                              frame == registers[arch.sp])):
            break
        values = {name: read(frame + offset & MASK) for name, offset, _size in step.saved}
        if None in values.values():
            break
        back = registers[step.link] if step.link else 0
        registers |= {name: value for name, value in values.items() if value is not None}
        pc = back if step.link else registers[arch.pc]
        if not step.trap:
            registers[arch.sp] = frame
        is_return = not step.trap
    return addresses[:most]
