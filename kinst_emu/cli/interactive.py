"""Connect the guest's console to the user's terminal or to a pipe."""

import os
import select
import sys
import termios
import tty

from emu.host.errors import KinstError
from emu.machine.machine import Machine, Stop, StopReason, Until

SLICE = 20_000_000  # virtual time between two checks of the keyboard (a slice), in ns
# once piped input has ended, the run stops after this many consecutive slices without output
QUIET = 5
LEAVE = 0x1D  # code of Ctrl-], which ends the session


def interact(machine: Machine) -> Stop | None:
    """Run the guest with standard input as its keyboard.

    On a terminal, the run ends at Ctrl-]; with a pipe, when the guest has written nothing for some
    time after the end of the pipe.

    :return: why the guest ended the run, or None when the user or the pipe ended it.
    :raises KinstError: when standard input is closed.
    """
    if sys.stdin is None:
        raise KinstError("-i: needs standard input, which is closed")
    keyboard = sys.stdin.fileno()
    terminal = os.isatty(keyboard)
    saved = termios.tcgetattr(keyboard) if terminal else None
    if terminal:
        print("\n[keyboard connected to the guest; press Ctrl-] to leave]", flush=True)
        tty.setraw(keyboard)
        settings = termios.tcgetattr(keyboard)
        settings[1] |= termios.OPOST
        termios.tcsetattr(keyboard, termios.TCSANOW, settings)
    ended, quiet = False, 0
    try:
        while quiet < QUIET:
            if not ended and select.select([keyboard], [], [], 0)[0]:
                data = os.read(keyboard, 256)
                if not data:
                    ended = True
                if terminal and LEAVE in data:
                    return None
                machine.type(data.replace(b"\n", b"\r"))
            before = len(machine.console.text)
            stop = machine.run(Until(time=machine.now + SLICE))
            sys.stdout.flush()
            if stop.reason is not StopReason.TIME:
                return stop
            if machine.console.full():
                return Stop(StopReason.OUTPUT, machine.pc, "the guest's console output exceeds "
                            "the size of the console log")
            quiet = quiet + 1 if ended and len(machine.console.text) == before else 0
        return None
    finally:
        if saved is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, saved)
