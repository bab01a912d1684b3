"""``kinst lesson``: an interactive tutorial that checks every task."""

import argparse

from emu.arch.architectures import ARCHITECTURES
from kinst_emu.api.kernel import MEMORY, open_kernel
from kinst_emu.shell.terminal import started
from kinst_emu.terminal.terminal import parse_size

EXAMPLES = ("kinst lesson", "kinst lesson --arch riscv64")
BANNER = """A lesson in {count} tasks, on a kernel of a few hundred lines.  Type Python code in
IPython; each task says what to do, and the lesson checks every line you type.  Type exit to end it.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst lesson``."""
    parser.add_argument("--arch", choices=list(ARCHITECTURES), default="amd64",
                        help="architecture of the teaching kernel (default: %(default)s)")
    parser.add_argument("--memory", default=MEMORY, metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Start the tutorial session, and return 0 when it ends."""
    shell, session = started()
    parse_size(arguments.memory)
    session.open_kernel(open_kernel(f"teaching/{arguments.arch}"), arguments.memory)
    from kinst_emu.shell.extension import teach
    from kinst_emu.shell.lesson import TASKS

    print(BANNER.format(count=len(TASKS)))
    teach(shell, session)
    shell.banner1 = shell.banner2 = ""
    shell.mainloop()
    return 0
