"""Description of an architecture for the native core: registers, trap frame, breakpoints."""

from dataclasses import dataclass

from emu.arch.arch import Arch
from emu.guest.guest import TrapFrame
from kinst.relocation.template import NO_REGISTER
from kinst.relocation.trap import Breakpoint, GuestTrap


@dataclass(frozen=True)
class Shape:
    """Registers, trap frame and breakpoints of an architecture, as the native core reads them.

    Large because the native core copies this structure field by field.

    :param registers: for each register: Unicorn's number, its offset in the trap frame or -1, and
        whether the kernel's return path restores it; other fields are indices into this list.
    :param frame: the register that holds the address of the trap frame at the seam.
    :param made: the registers of a function's second to seventh argument; None for an argument on
        the stack, which starts ``made_stack`` bytes above the stack pointer at function entry.
    :param effects: for each instruction that the kernel's vectors emulate: its bytes, the answer
        that requests it, the register from which the stack pointer is set and the bytes added,
        whether it returns, and the registers that it stores and loads.
    :param breakpoints: the breakpoints of the guest trap path and of the direct path.
    """

    registers: list[tuple[int, int, bool]]
    arguments: list[int]
    made: list[int | None]
    made_stack: int
    untold: list[int]
    pc: int
    sp: int
    status: int
    link: int
    linked: bool
    result: int
    frame: int
    segment: int
    repeat_counter: int
    flag_bits: tuple[int, ...]
    called: bool
    frame_mask: int
    mask_sets: bool
    cpu_mask: int
    flags_if: int
    frame_size: int
    second_breakpoint: bool
    breakpoints: tuple[Breakpoint, Breakpoint]
    short_nop: bytes
    jump: bytes
    split: object
    frame_bias: int
    effects: list[tuple[bytes, int, int, int, bool, int, int]]


def register_names(arch: Arch, trap: GuestTrap) -> list[str]:
    """Return the names of all registers, in the order of their numbers in the native core."""
    return [*arch.registers, *(n for n in trap.more_registers if n not in arch.registers)]


def shape(arch: Arch, trap: GuestTrap, frame: TrapFrame) -> Shape:
    """Describe an architecture for the native core.

    :param frame: the layout of the kernel's trap frame.
    """
    names = register_names(arch, trap)
    fields, status, counter = frame.fields, trap.status, trap.instructions.repeat_counter

    def place(name: str) -> int:
        return fields.get(trap.frame.field(name), (-1, 0))[0]

    def numbered(name: str) -> int:
        return names.index(name) if name else NO_REGISTER

    registers = [(trap.numbers[n], place(n), n not in trap.frame.unrestored) for n in names]
    arguments = [names.index(n) for n in arch.arguments[:5]]
    made = [names.index(n) for n in arch.arguments[1:7]]
    return Shape(
        registers, arguments, [*made, *[None] * (6 - len(made))], 0 if arch.link else 8,
        [names.index(n) for n in trap.frame.untold],
        names.index(arch.pc), names.index(arch.sp),
        names.index(status.name), names.index(arch.link) if arch.link else 0,
        arch.link is not None,
        names.index(arch.result), names.index(trap.frame.register),
        names.index(trap.segment) if trap.segment else 0,
        names.index(counter) if counter else 0, status.flag_bits,
        trap.called, status.frame_mask, status.mask_sets, status.cpu_mask, trap.interrupt_flag,
        frame.size, trap.second_breakpoint,
        (trap.guest_breakpoint, trap.direct_breakpoint or trap.guest_breakpoint), trap.short_nop,
        trap.jump, trap.instructions.split(), trap.frame.bias,
        [(code, one.answer, names.index(one.base), one.change, one.returns,
          numbered(one.stores), numbered(one.loads)) for code, one in trap.kernel_effects.items()],
    )
