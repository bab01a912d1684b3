"""Manual pages of ``kinst`` and ``kdtrace``, from what they say with ``--help``: ``make man``.

    python docs/man.py DIRECTORY
"""

import argparse
import importlib
import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
QUOTE = re.compile(r"^'", re.MULTILINE)  # troff would take what follows for a request
os.environ["COLUMNS"] = "100"  # how --help breaks its lines


def pages() -> dict[str, str]:
    """By the names of their files."""
    from argparse_manpage.manpage import Manpage

    from kinst_emu.cli import command_line as kdtrace
    from kinst_emu.commands.kinst import COMMANDS, whole_parser

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    examples = [line for name in COMMANDS
                for line in importlib.import_module(f"kinst_emu.commands.{name}").EXAMPLES]
    found = {}
    for name, parser, text, lines in (
            ("kinst", whole_parser(),
             "boots FreeBSD kernels inside Python, and calls into them", examples),
            ("kdtrace", kdtrace.make_parser(), "DTrace for a kernel that runs inside Python",
             kdtrace.EXAMPLES)):
        parser.epilog = None
        data = {"project_name": project["name"], "version": project["version"],
                "description": text, "manual_section": "1", "manual_title": "kinst-emu",
                "prog": name}
        page = QUOTE.sub(r"\\&'", str(Manpage(parser, format="pretty", _data=data)))
        left_out = _left_out() if name == "kdtrace" else ""
        shown = "\n".join("\\&" + line.replace("\\", "\\e").replace("-", "\\-") for line in lines)
        found[f"{name}.1"] = f"{page}{left_out}.SH EXAMPLES\n.nf\n{shown}\n.fi\n"
    return found


def _left_out() -> str:
    """The section with the functions that no probe is placed in, of FreeBSD's kernels."""
    from emu.arch.parts import NAMES
    from emu.guests.registry import FREEBSD

    lines = [".SH FUNCTIONS THAT ARE LEFT OUT",
             "DTrace itself may run through these functions of a FreeBSD kernel, so that no probe "
             "is placed in them without \\-\\-unsafe. With \\-lv, kdtrace lists those a kernel "
             "has, and why single instructions are left out."]
    for arch in NAMES:
        unsafe = FREEBSD[arch].traps.exclusions
        names = [*sorted(unsafe.names),
                 *(f"{prefix}* (but for {unsafe.allowed}*)" if unsafe.allowed.startswith(prefix)
                   else f"{prefix}*" for prefix in unsafe.prefixes)]
        lines += [".TP", arch, ", ".join(names).replace("-", "\\-") + "."]
        if unsafe.copied:
            lines += [".RS", "Code that is copied to user programs: "
                      + ", ".join(sorted(unsafe.copied)) + ".", ".RE"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the manual pages.")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text)
        print(directory / name)


if __name__ == "__main__":
    main()
