"""The native reader of code (``_reader.pyx``), which asks the tables of an architecture."""

from collections.abc import Callable
from dataclasses import dataclass, field

from emu.arch.arch import Arch
from emu.guest.guest import TrapFrame
from kinst.code._reader import CodeReader
from kinst.relocation.lowering import HERE, Template, template
from kinst.relocation.shape import register_names, shape
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Lowered, Op, Relative


@dataclass
class Templates:
    """All templates made so far, and the number of each."""

    trap: GuestTrap
    names: list[str]
    known: dict[Template, int] = field(default_factory=dict)
    add: Callable[..., int] = lambda *arguments: 0

    def serve(self, reader: CodeReader) -> None:
        """Make templates for a reader from now on, which asks for them by calling this object."""
        self.add, reader.literal = reader.add_template, self.trap.instructions.literal

    def __call__(self, code: bytes, length: int, relative: int) -> tuple[int, int]:
        """The number of the template of the first instruction of ``code`` (-1: it is none), and
        that instruction's length.

        :param length: as the native decoder sees it; where the tables see another, they are right.
        """
        true, verdict = self.trap.instructions.classify(code, HERE)
        made = template(self.trap, code[:true], relative, verdict) if true else None
        if made is None:
            return -1, length
        if true != length and made.lowered.relative is not Relative.ABSOLUTE:
            made = Template(Lowered(Op.REFUSE), reason="is of an unusual length")
        number = self.known.get(made)
        if number is None:
            number = self.known[made] = self.add(*made.arguments(self.names))
        return number, true


def new_reader(arch: Arch, trap: GuestTrap, frame: TrapFrame) -> tuple[CodeReader, Templates]:
    """A reader of an architecture's code, and the templates it will make.

    :param frame: of the kernel whose code it is.
    """
    templates = Templates(trap, register_names(arch, trap))
    made = CodeReader(shape(arch, trap, frame), templates)
    templates.serve(made)
    return made, templates
