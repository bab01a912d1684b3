"""What gdb is told of a CPU (gdb manual, appendix G, "Target Descriptions")."""

from dataclasses import dataclass

from emu.arch.parts import Parts


@dataclass(frozen=True)
class GdbRegister:
    """:param name: gdb's.
    :param ours: its name here; None: it is not to be had, and gdb is told so.
    """

    name: str
    ours: str | None
    bits: int = 64
    type: str = "int64"


@dataclass(frozen=True)
class TargetDescription:
    """:param architecture: gdb's name of it.
    :param features: gdb's name of each, and its registers: their order is that of ``g``.
    :param advice: commands that gdb needs before it reads the kernel.
    """

    architecture: str
    features: tuple[tuple[str, tuple[GdbRegister, ...]], ...]
    advice: tuple[str, ...] = ()

    @property
    def registers(self) -> list[GdbRegister]:
        return [register for _name, registers in self.features for register in registers]

    def xml(self) -> str:
        from xml.sax.saxutils import quoteattr  # takes a while to load, and few ask

        rows = ['<?xml version="1.0"?>', '<!DOCTYPE target SYSTEM "gdb-target.dtd">',
                '<target version="1.0">',
                f"<architecture>{self.architecture}</architecture>"]
        for name, registers in self.features:
            rows.append(f"<feature name={quoteattr(name)}>")
            rows += [f'<reg name={quoteattr(r.name)} bitsize="{r.bits}" type="{r.type}"/>'
                     for r in registers]
            rows.append("</feature>")
        return "\n".join([*rows, "</target>"])


DESCRIPTIONS: Parts[TargetDescription] = Parts("emu.{}.registers", "DESCRIPTION")
