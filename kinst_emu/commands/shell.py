"""``kinst shell``: an interactive session with a kernel, or a recording."""

import argparse

from kinst_emu.shell.opening import open_with, opening
from kinst_emu.shell.terminal import started

EXAMPLES = (
    "kinst shell -k teaching/amd64",
    "kinst shell -k kernel --module kinst",
    "kinst shell boot.rec",
    "kinst shell -k teaching/arm64 -c 'call(\"strlen\", \"hello\")'",
)
BANNER = """{what}
  call("strlen", "hello")   run("malloc")   step()   back()   here()   probe("fbt::malloc:entry")
  %%dtrace   %explain strlen:0 -c 'strlen("hello")'   %disas strlen   %layout struct thread
  variable("mp_ncpus")   struct("thread", ADDRESS).td_<Tab>   machine?   call?   exit
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    opening(parser)
    parser.add_argument("-c", dest="code", metavar="CODE",
                        help="execute this, show what it gives, and end")


def run(arguments: argparse.Namespace) -> int:
    shell, session = started()
    open_with(session, arguments)
    if arguments.code is not None:
        result = shell.run_cell(arguments.code, store_history=False)
        ended = result.error_in_exec
        if isinstance(ended, SystemExit):
            return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        return 0 if result.success else 1
    shell.banner1 = BANNER.format(what=session.recording or session.machine)
    shell.show_banner()
    shell.mainloop()
    return 0
