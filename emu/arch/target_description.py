"""Descriptions of CPUs for gdb (gdb manual, appendix G, "Target Descriptions")."""

from typing import NamedTuple

from emu.arch.parts import Parts


class GdbRegister(NamedTuple):
    """A register, as described to gdb.

    :param name: gdb's name of the register.
    :param ours: name of the register here; None: its value is unavailable in gdb.
    """

    name: str
    ours: str | None
    bits: int = 64
    type: str = "int64"


class TargetDescription(NamedTuple):
    """Registers of an architecture, as described to gdb.

    :param architecture: gdb's name of the architecture.
    :param features: (gdb's name of the feature, registers); packet ``g`` has the same order.
    :param advice: commands to enter in gdb before it reads the kernel.
    """

    architecture: str
    features: tuple[tuple[str, tuple[GdbRegister, ...]], ...]
    advice: tuple[str, ...] = ()

    @property
    def registers(self) -> list[GdbRegister]:
        """All registers, in the order of gdb's ``g`` packet."""
        return [register for _name, registers in self.features for register in registers]

    def xml(self) -> str:
        """Return the description in gdb's XML format."""
        from xml.sax.saxutils import quoteattr  # imported late, because the import is slow

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
