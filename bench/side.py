"""An emulator process that a benchmark uses over the guest's console."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


class Side:
    """An emulator process with the guest's console on its standard input and output.

    :param patience: maximum number of seconds to wait for a text.
    """

    def __init__(self, command: list[str], patience: float) -> None:
        self._patience = patience
        self.began = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        self.seen = bytearray()

    def until(self, text: bytes) -> float:
        """Wait for a text on the console and return the seconds that this takes."""
        began = time.perf_counter()
        while text not in self.seen:
            ready, _, _ = select.select([self.process.stdout], [], [], self._patience)
            data = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            if not data or time.perf_counter() - began > self._patience:
                sys.exit(f"{Path(sys.argv[0]).name}: no {text!r} from: "
                         f"{' '.join(self.process.args)}\n"
                         + self.seen[-2000:].decode("utf-8", "replace"))
            self.seen += data
        self.said = bytes(self.seen[: self.seen.index(text)])
        del self.seen[: len(self.said) + len(text)]
        return time.perf_counter() - began

    def type(self, line: str) -> None:
        """Type a line on the console."""
        self.process.stdin.write(line.encode() + b"\r")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill the emulator."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
