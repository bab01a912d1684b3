"""Verdicts as templates for the native core.

A template is shared by all places where an encoding stands: it has how far its target is from the
instruction, where the verdict says that the target follows it.
"""

from dataclasses import dataclass

from kinst.relocation.template import NO_REGISTER, Trait
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Copy, Lowered, Op, Refuse, Relative, Rewrite, Verdict

HERE = 0x4000_0000  # the begin of a page, at which verdicts are asked for
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Template:
    """Arguments of ``CodeReader.add_template``."""

    lowered: Lowered
    flags: int = 0
    code: bytes = b""
    has_data: bool = False
    reason: str = ""  # of a refusal

    def arguments(self, names: list[str]) -> tuple[object, ...]:
        low = self.lowered
        a, b, c = (names.index(r) if r in names else NO_REGISTER for r in (low.a, low.b, low.c))
        return (int(low.op), a, b, c, low.n, int(low.relative), self.flags, low.truth,
                low.target & MASK, low.extra & MASK, self.code, self.has_data)


def lowered(verdict: Verdict, trap: GuestTrap) -> tuple[Lowered, bytes, bool]:
    """The operation, the code that replaces the instruction, whether its target lies behind it."""
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
    """The template of an instruction.

    :param relative: a displacement in it that the template leaves to each site.
    :param verdict: at HERE.
    """
    known = trap.instructions
    here, body, data = lowered(verdict, trap)
    flags = (Trait.ENDS_BLOCK * here.ends_block
             | Trait.STARTS_EXCLUSIVE * known.starts_exclusive(code)
             | Trait.ENDS_EXCLUSIVE * known.ends_exclusive(code)
             | Trait.PROLOGUE * known.is_prologue(code) | Trait.RETURNS * known.is_return(code)
             | Trait.LANDING * known.is_landing(code) | Trait.REPEATS * known.repeats(code))
    if here.relative is not Relative.ABSOLUTE:
        origin = 0 if here.relative is Relative.DISPLACEMENT else HERE
        here = here.to(here.target - origin - relative & MASK)
    return Template(here, flags, body, data, verdict.reason if isinstance(verdict, Refuse) else "")
