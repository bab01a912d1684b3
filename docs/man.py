"""Generate the manual pages of ``kinst`` and ``kdtrace`` from their ``--help`` texts: ``make man``.

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
# troff treats a line that begins with a quote or a period as a request.  The requests, macros and
# comments that argparse-manpage writes continue with a letter or a backslash.
REQUEST = re.compile(r"^(?='|\.[^A-Za-z\\])", re.MULTILINE)
os.environ["COLUMNS"] = "100"  # line width of the --help texts in columns


def pages() -> dict[str, str]:
    """Return the manual pages, keyed by file name."""
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
        page = REQUEST.sub(r"\\&", str(Manpage(parser, format="pretty", _data=data)))
        left_out = _left_out() if name == "kdtrace" else ""
        shown = "\n".join("\\&" + line.replace("\\", "\\e").replace("-", "\\-") for line in lines)
        found[f"{name}.1"] = f"{page}{left_out}.SH EXAMPLES\n.nf\n{shown}\n.fi\n"
    return found


def _left_out() -> str:
    """Return the manual section that lists the FreeBSD kernel functions excluded from probing."""
    from emu.arch.parts import NAMES
    from emu.guests.registry import FREEBSD

    lines = [".SH EXCLUDED FUNCTIONS",
             "DTrace itself may execute these functions of a FreeBSD kernel, so kdtrace places no "
             "probes in them unless \\-\\-unsafe is specified. With \\-lv, kdtrace lists the "
             "excluded functions of a kernel, and why it does not probe certain instructions."]
    for arch in NAMES:
        unsafe = FREEBSD[arch].traps.exclusions
        names = [*sorted(unsafe.names),
                 *(f"{prefix}* (except {unsafe.allowed}*)" if unsafe.allowed.startswith(prefix)
                   else f"{prefix}*" for prefix in unsafe.prefixes)]
        lines += [".TP", arch, ", ".join(names).replace("-", "\\-") + "."]
        if unsafe.copied:
            lines += [".RS", "Code that is copied to user programs: "
                      + ", ".join(sorted(unsafe.copied)) + ".", ".RE"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the manual pages to a directory.")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text)
        print(directory / name)


if __name__ == "__main__":
    main()
