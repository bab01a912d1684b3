"""Runs that are recorded: the boot, calls, a Python program's."""

import contextlib
import runpy
import shlex
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from emu.errors import KinstError
from emu.replay.recording import Recorder
from emu.unicorn.machine import UnicornMachine
from kinst_emu.kernel import Kernel
from kinst_emu.machine import Machine
from kinst_emu.terminal import check_writable

WORKLOAD = "workload"  # the function of a Python program that is recorded


@contextlib.contextmanager
def recorded(machine: UnicornMachine, path: Path | None, kind: str, workload: str,
             quiet: bool = False) -> Iterator[None]:
    """Record a machine meanwhile, whatever happens, and say how to play it; with no path, not.

    :param kind: what its state was made from (``emu.replay.recording``).
    """
    if path is None:
        yield
        return
    check_writable(path, "the recording")
    if path.exists() and (not path.is_file() or path.samefile(machine.image.path)):
        raise KinstError(f"{path}: is the kernel, or no plain file: give the recording another "
                         "name")
    recorder = Recorder(machine, path, kind, workload)
    try:
        yield
    finally:
        end = recorder.end()
        if end is not None and not quiet:
            if machine.console.text and not machine.console.text.endswith(b"\n"):
                print()
            length = end.position.instructions - recorder.start.position.instructions
            more = " --to panic" if "panic" in end.stop else ""
            print(f"recorded {length} instructions in {path} ({recorder.size} bytes); play it by: "
                  f"kinst replay {shlex.quote(str(path))}{more}")


def run_program(path: Path, kernel: Kernel, machine: UnicornMachine) -> None:
    """Run a Python program's function ``workload(machine)``.

    :raises KinstError: when it has none, or raises.
    """
    try:
        found = runpy.run_path(str(path)).get(WORKLOAD)
        if not callable(found):
            raise KinstError(f"{path}: has no function {WORKLOAD}(machine)")
        found(Machine(kernel, machine))
    except (KinstError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 (it is the user's program: any of it is said)
        rows = [row for row in traceback.extract_tb(sys.exc_info()[2])
                if row.filename == str(path)]
        where = f":{rows[-1].lineno}" if rows else ""
        raise KinstError(f"{path}{where}: {type(error).__name__}: {error}") from None
