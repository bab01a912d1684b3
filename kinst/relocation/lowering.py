"""Lowering of verdicts to templates for the native core.

All instructions with the same encoding share a template.  If a verdict's target moves with the
instruction, the template contains the distance between them.
"""

from dataclasses import dataclass

from kinst.relocation.template import NO_REGISTER, Trait
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Copy, Lowered, Op, Refuse, Relative, Rewrite, Verdict

HERE = 0x4000_0000  # page-aligned address for which verdicts are computed
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Template:
    """Template of an encoding, as added by ``CodeReader.add_template``."""

    lowered: Lowered
    flags: int = 0
    code: bytes = b""
    has_data: bool = False
    reason: str = ""  # reason why the instruction is refused

    def arguments(self, names: list[str]) -> tuple[object, ...]:
        """Return the arguments for ``CodeReader.add_template``.

        :param names: the names of all registers, in the order of their numbers.
        """
        low = self.lowered
        a, b, c = (names.index(r) if r in names else NO_REGISTER for r in (low.a, low.b, low.c))
        return (int(low.op), a, b, c, low.n, int(low.relative), self.flags, low.truth,
                low.target & MASK, low.extra & MASK, self.code, self.has_data)


def lowered(verdict: Verdict, trap: GuestTrap) -> tuple[Lowered, bytes, bool]:
    """Return a verdict's operation and replacement code, and whether the code needs a data word."""
    if isinstance(verdict, Refuse):
        return Lowered(Op.REFUSE), b"", False
    if isinstance(verdict, Copy):
        return Lowered(Op.COPY), b"", False
    if isinstance(verdict, Rewrite):
        if verdict.displacement is not None:
            offset, target = verdict.displacement
            return Lowered(Op.REWRITE, n=offset, target=target,
                           relative=verdict.relative), b"", False
        if not verdict.data:
            return Lowered(Op.REWRITE), verdict.code, False
        return Lowered(Op.REWRITE, target=int.from_bytes(verdict.data, "little"),
                       relative=verdict.relative), verdict.code, True
    return verdict.lower(trap.status.flag_bits), b"", False


def template(trap: GuestTrap, code: bytes, relative: int, verdict: Verdict) -> Template:
    """Return the template of an instruction.

    :param relative: the displacement in the instruction, which the template does not contain.
    :param verdict: the instruction's verdict at the address ``HERE``.
    """
    table = trap.instructions
    here, body, data = lowered(verdict, trap)
    flags = (Trait.ENDS_BLOCK * here.ends_block
             | Trait.STARTS_EXCLUSIVE * table.starts_exclusive(code)
             | Trait.ENDS_EXCLUSIVE * table.ends_exclusive(code)
             | Trait.PROLOGUE * table.is_prologue(code) | Trait.RETURNS * table.is_return(code)
             | Trait.LANDING * table.is_landing(code) | Trait.REPEATS * table.repeats(code))
    if here.relative is not Relative.ABSOLUTE:
        origin = 0 if here.relative is Relative.DISPLACEMENT else HERE
        here = here.to(here.target - origin - relative & MASK)
    return Template(here, flags, body, data, verdict.reason if isinstance(verdict, Refuse) else "")
