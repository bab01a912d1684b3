"""What the native core is told: the shape of an architecture, and verdicts as templates.

A template is shared by all places where an encoding stands, so that it must say how its target
follows the address.  That is found by asking the tables twice, for two addresses.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from emu.arch import Arch
from emu.guest import TrapFrame
from emu.unicorn._engine import Engine
from kinst._dispatch import Dispatcher
from kinst.code._reader import CodeReader
from kinst.code.shared import NO_REGISTER, Relative, Trait
from kinst.code.verdict import Copy, Lowered, Op, Refuse, Rewrite, Verdict
from kinst.trap import Breakpoint, GuestTrap

HERE, THERE = 0x4000_0000, 0x4000_5804  # two addresses, on different pages
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Shape:
    """Registers, trap frame and breakpoint of an architecture, as the native core wants them.

    :param registers: Unicorn's number, offset in the trap frame or -1, whether the kernel's return
        path restores it; the other fields are indices into it.
    :param frame: the register that holds the frame's address at the seam.
    :param made: of a function's arguments behind the first, six; None: on the stack, ``made_stack``
        above its pointer when the function is entered.
    :param told: of instructions that the kernel's vectors do: bytes, what they are told, the
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
    told: list[tuple[bytes, int, int, int, bool, int, int]]


def register_names(arch: Arch, trap: GuestTrap) -> list[str]:
    return [*arch.registers, *(n for n in trap.more_registers if n not in arch.registers)]


def shape(arch: Arch, trap: GuestTrap, frame: TrapFrame) -> Shape:
    names = register_names(arch, trap)
    fields = frame.fields

    def place(name: str) -> int:
        return fields.get(trap.names.get(name, name), (-1, 0))[0]

    def numbered(name: str) -> int:
        return names.index(name) if name else NO_REGISTER

    registers = [(trap.numbers[n], place(n), n not in trap.unrestored) for n in names]
    arguments = [names.index(n) for n in arch.arguments[:5]]
    made = [names.index(n) for n in arch.arguments[1:7]]
    return Shape(
        registers, arguments, [*made, *[None] * (6 - len(made))], 0 if arch.link else 8,
        [names.index(n) for n in trap.untold],
        names.index(arch.pc), names.index(arch.sp),
        names.index(trap.status), names.index(arch.link) if arch.link else 0,
        arch.link is not None,
        names.index(arch.result), names.index(trap.frame_register),
        names.index(trap.segment) if trap.segment else 0,
        names.index(trap.repeat_counter) if trap.repeat_counter else 0, trap.flag_bits,
        trap.called, trap.frame_mask, trap.mask_sets, trap.cpu_mask, trap.interrupt_flag,
        frame.size, trap.second_breakpoint,
        (trap.guest_breakpoint, trap.direct_breakpoint or trap.guest_breakpoint), trap.short_nop,
        trap.jump, trap.split(), trap.frame_bias,
        [(code, one.answer, names.index(one.base), one.change, one.returns,
          numbered(one.stores), numbered(one.loads)) for code, one in trap.told.items()],
    )


@dataclass(frozen=True)
class Template:
    """Arguments of ``CodeReader.add_template``."""

    lowered: Lowered
    relative: int = Relative.ABSOLUTE
    flags: int = 0
    code: bytes = b""
    has_data: bool = False
    reason: str = ""  # of a refusal

    def arguments(self, names: list[str]) -> tuple[object, ...]:
        low = self.lowered
        a, b, c = (names.index(r) if r in names else NO_REGISTER for r in (low.a, low.b, low.c))
        return (int(low.op), a, b, c, low.n, self.relative, self.flags, low.truth,
                low.target & MASK, low.extra & MASK, self.code, self.has_data)


def _lower(verdict: Verdict, trap: GuestTrap) -> tuple[Lowered, bytes, bool]:
    """The operation, the code that replaces the instruction, whether its target lies behind it."""
    if isinstance(verdict, Refuse):
        return Lowered(Op.REFUSE), b"", False
    if isinstance(verdict, Copy):
        return Lowered(Op.COPY), b"", False
    if isinstance(verdict, Rewrite):
        if verdict.displacement is not None:
            offset, target = verdict.displacement
            return Lowered(Op.REWRITE, n=offset, target=target), b"", False
        return (Lowered(Op.REWRITE, target=int.from_bytes(verdict.data, "little")), verdict.code,
                bool(verdict.data))
    return verdict.lower(trap.flag_bits), b"", False


@dataclass
class Templates:
    """All templates made so far, and the numbers a reader of code gave them."""

    trap: GuestTrap
    names: list[str]
    known: dict[Template, int] = field(default_factory=dict)
    add: Callable[..., int] = lambda *arguments: 0

    def serve(self, reader: CodeReader) -> None:
        """Make templates for a reader from now on, which asks for them by calling this object."""
        self.add, reader.literal = reader.add_template, self.trap.literal

    def __call__(self, code: bytes, length: int, relative: int) -> tuple[int, int]:
        """The number of the template of the first instruction of ``code`` (-1: it is none), and
        that instruction's length.

        :param length: as the native decoder sees it; where the tables see another, they are right.
        """
        true, verdict = self.trap.classify(code, HERE)
        made = template(self.trap, code[:true], relative, verdict) if true else None
        if made is None:
            return -1, length
        if true != length and made.relative != Relative.ABSOLUTE:
            made = Template(Lowered(Op.REFUSE), reason="is of an unusual length")
        number = self.known.get(made)
        if number is None:
            number = self.known[made] = self.add(*made.arguments(self.names))
        return number, true


def dispatcher(
    arch: Arch, trap: GuestTrap, frame: TrapFrame, engine: Engine | None
) -> tuple[Dispatcher, Templates]:
    """A native core for the architecture, and the templates it will make.

    :param frame: of the kernel that takes the traps.
    :param engine: of the machine; None: its breakpoints are answered by another.
    """
    templates = Templates(trap, register_names(arch, trap))
    made = Dispatcher(engine, shape(arch, trap, frame), templates)
    templates.serve(made)
    return made, templates


def reader(arch: Arch, trap: GuestTrap, frame: TrapFrame) -> tuple[CodeReader, Templates]:
    """As ``dispatcher``, to look at code only."""
    templates = Templates(trap, register_names(arch, trap))
    made = CodeReader(shape(arch, trap, frame), templates)
    templates.serve(made)
    return made, templates


def template(trap: GuestTrap, code: bytes, relative: int, verdict: Verdict) -> Template:
    """The template of an instruction.

    :param relative: a displacement in it that the template leaves to each site.
    :param verdict: at HERE.
    """
    here, body, data = _lower(verdict, trap)
    there = here
    if not isinstance(verdict, Copy | Refuse):  # which know no address
        there = _lower(trap.classify(code, THERE)[1], trap)[0]
    flags = (Trait.ENDS_BLOCK * here.ends_block
             | Trait.STARTS_EXCLUSIVE * trap.starts_exclusive(code)
             | Trait.ENDS_EXCLUSIVE * trap.ends_exclusive(code)
             | Trait.PROLOGUE * trap.is_prologue(code) | Trait.RETURNS * trap.is_return(code)
             | Trait.LANDING * trap.is_landing(code)
             | Trait.REPEATS * trap.repeats(code))
    moved = there.target - here.target & MASK
    through_memory = here.op is Op.INDIRECT and not here.extra
    if moved == 0 and not through_memory:
        reason = verdict.reason if isinstance(verdict, Refuse) else ""
        return Template(here, Relative.ABSOLUTE, flags, body, data, reason)
    if moved == 0:
        base = here.target - relative & MASK
        return Template(here.to(base), Relative.DISPLACEMENT, flags, body, data)
    base = here.target - HERE - relative & MASK
    if moved == THERE - HERE:
        return Template(here.to(base), Relative.RELATIVE, flags, body, data)
    assert moved == (THERE & ~0xFFF) - HERE, "a target follows its instruction in an unknown way"
    return Template(here.to(base), Relative.PAGE_RELATIVE, flags, body, data)
