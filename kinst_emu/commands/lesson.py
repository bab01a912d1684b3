"""``kinst lesson``: the tutorial in a session, a task at a time, that looks at what one did."""

import argparse

from emu.arch.architectures import ARCHITECTURES
from kinst_emu.api.kernel import MEMORY, open_kernel
from kinst_emu.shell.terminal import started
from kinst_emu.terminal.terminal import parse_size

EXAMPLES = ("kinst lesson", "kinst lesson --arch riscv64")
BANNER = """A lesson, in {count} tasks, on a kernel of a few hundred lines.  You type Python,
in IPython; each task says what to do, and each line you type is looked at.  exit ends it.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", choices=list(ARCHITECTURES), default="amd64",
                        help="the teaching kernel of that architecture (%(default)s)")
    parser.add_argument("--memory", default=MEMORY, metavar="SIZE", help="guest RAM (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
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
