"""The shape of an architecture, as the native core wants it: registers, trap frame, breakpoints."""

from dataclasses import dataclass

from emu.arch.arch import Arch
from emu.guest.guest import TrapFrame
from kinst.relocation.template import NO_REGISTER
from kinst.relocation.trap import Breakpoint, GuestTrap


@dataclass(frozen=True)
class Shape:
    """Registers, trap frame and breakpoint of an architecture, as the native core wants them.

    Large because the native core takes it as one structure, field by field.

    :param registers: Unicorn's number, offset in the trap frame or -1, whether the kernel's return
        path restores it; the other fields are indices into it.
    :param frame: the register that holds the frame's address at the seam.
    :param made: of a function's arguments behind the first, six; None: on the stack, ``made_stack``
        above its pointer when the function is entered.
    :param effects: of instructions that the kernel's vectors do: bytes, what they are told, the
        register that the stack pointer is afterwards and how far from it, whether it returns, the
        registers that it stores and loads.
    :param breakpoints: of the guest path and of the direct one.
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
    return [*arch.registers, *(n for n in trap.more_registers if n not in arch.registers)]


def shape(arch: Arch, trap: GuestTrap, frame: TrapFrame) -> Shape:
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
