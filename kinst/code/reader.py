"""Native code reader (``_reader.pyx``) with the instruction tables of an architecture."""

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
    """All templates that were created for an architecture, and their numbers."""

    trap: GuestTrap
    names: list[str]
    known: dict[Template, int] = field(default_factory=dict)
    add: Callable[..., int] = lambda *arguments: 0

    def serve(self, reader: CodeReader) -> None:
        """Add all future templates to a reader, and let the reader find data in the code."""
        self.add, reader.literal = reader.add_template, self.trap.instructions.literal

    def __call__(self, code: bytes, length: int, relative: int) -> tuple[int, int]:
        """Return an instruction's template number (-1 if invalid) and length.

        :param code: bytes that begin with the instruction.
        :param length: its length according to the native decoder; the tables take precedence.
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
    """Create a code reader for an architecture, and the collection of its templates.

    :param frame: the trap frame layout of the kernel whose code is read.
    """
    templates = Templates(trap, register_names(arch, trap))
    made = CodeReader(shape(arch, trap, frame), templates)
    templates.serve(made)
    return made, templates
