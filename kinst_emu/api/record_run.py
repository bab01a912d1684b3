"""Recording of a machine's run to a file."""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from kinst_emu.terminal.terminal import check_writable


@contextlib.contextmanager
def recorded(machine: UnicornMachine, path: Path | None, kind: str, workload: str,
             quiet: bool = False, self_contained: bool = False) -> Iterator[None]:
    """Record a machine in a ``with`` block, and print how to replay the recording.

    The recording is completed even if the block raises an exception.  Without a path, nothing is
    recorded.

    :param kind: what the machine's state was made from (``emu.replay.recording``).
    :param workload: description of what is recorded.
    :param quiet: print nothing.
    :param self_contained: whether the recording contains large disks and the first state; else it
        refers to them.
    """
    if path is None:
        yield
        return
    check_writable(path, "the recording")
    if path.exists() and (not path.is_file() or path.samefile(machine.image.path)):
        raise KinstError(f"{path}: is the kernel or is not a regular file: choose another file "
                         "for the recording")
    # Deferred: slow to import (compression, JSON)
    from emu.replay.recording import Recorder
    from images.kept_contents import KeptContents

    store = None if self_contained else KeptContents(path)
    recorder = Recorder(machine, path, kind, workload, store)
    try:
        yield
    finally:
        end = recorder.end()
        if end is not None and not quiet:
            length = end.position.instructions - recorder.start.position.instructions
            more = " --to panic" if "panic" in end.stop else ""
            print(f"recorded {length} instructions in {path} ({recorder.size} bytes); replay with: "
                  f"kinst replay {shlex.quote(str(path))}{more}")
