"""Verdicts as templates for the native core.

A template is shared by all places where an encoding stands, so it must say how its target follows
the address.  Asking the tables twice, for two addresses, shows that.
"""

from dataclasses import dataclass

from kinst.relocation.template import NO_REGISTER, Relative, Trait
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Copy, Lowered, Op, Refuse, Rewrite, Verdict

HERE, THERE = 0x4000_0000, 0x4000_5804  # two addresses, on different pages
MASK = (1 << 64) - 1


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
    return verdict.lower(trap.status.flag_bits), b"", False


def template(trap: GuestTrap, code: bytes, relative: int, verdict: Verdict) -> Template:
    """The template of an instruction.

    :param relative: a displacement in it that the template leaves to each site.
    :param verdict: at HERE.
    """
    known = trap.instructions
    here, body, data = _lower(verdict, trap)
    there = here
    if not isinstance(verdict, Copy | Refuse):  # which know no address
        there = _lower(known.classify(code, THERE)[1], trap)[0]
    flags = (Trait.ENDS_BLOCK * here.ends_block
             | Trait.STARTS_EXCLUSIVE * known.starts_exclusive(code)
             | Trait.ENDS_EXCLUSIVE * known.ends_exclusive(code)
             | Trait.PROLOGUE * known.is_prologue(code) | Trait.RETURNS * known.is_return(code)
             | Trait.LANDING * known.is_landing(code) | Trait.REPEATS * known.repeats(code))
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
