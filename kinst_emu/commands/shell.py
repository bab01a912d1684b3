"""``kinst shell``: an interactive Python session on a kernel or a recording."""

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
  args()   locals()   next()   enter()   finish()   up()   down()   why("size")
  %%dtrace   %explain strlen:0 -c 'strlen("hello")'   %disas strlen   %layout struct thread
  variable("mp_ncpus")   struct("thread", ADDRESS).td_<Tab>   machine?   call?   exit
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst shell``."""
    opening(parser)
    parser.add_argument("-c", dest="code", metavar="CODE",
                        help="execute this code, print its result, and exit (default: start an "
                        "interactive session)")


def run(arguments: argparse.Namespace) -> int:
    """Start the session, or execute the code of -c; return the exit status."""
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
