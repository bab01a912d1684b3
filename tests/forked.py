"""Fast execution of commands by a server process that imports all modules once and forks.

This saves the third of a second that each command takes to load. A forked command differs from one
in a new process in two ways: all modules are loaded already, and strings hash as in the server.
Tests of how commands start (test_front, test_package), send signals, or read output while a command
writes it use new processes.
"""

import array
import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("emu", "kinst", "dwarf", "dtrace", "images", "kinst_emu")
# Modules that load slowly or start threads; a command loads them when it needs them.
LEFT_OUT = ("kinst_emu.shell", "kinst_emu.explain.view.terminal", "kinst_emu.pytest_plugin")
TIMEOUT = 120  # time limit for a command, in seconds


class Completed(subprocess.CompletedProcess):
    """Result of a finished command, with its peak memory use.

    :param peak: the largest amount of memory that the command used, in bytes
    """

    def __init__(self, *arguments, peak):
        super().__init__(*arguments)
        self.peak = peak


def completed(module, words, stdin=None):
    """Run ``python -m MODULE WORDS`` in a forked process, as ``subprocess.run`` would."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write((stdin or "").encode())
        files[0].seek(0)
        status, peak = forking().run(
            {"module": module, "words": list(words), "cwd": os.getcwd(),
             "environment": dict(os.environ)}, [file.fileno() for file in files])
        texts = []
        for file in files[1:]:
            file.seek(0)
            # A guest's console can write arbitrary bytes to a pipe.
            texts.append(io.TextIOWrapper(file, "utf-8", "backslashreplace").read())
        return Completed([sys.executable, "-m", module, *words], status, *texts, peak=peak)


@functools.cache
def forking():
    """Return the client of the server process; the first call starts the server."""
    return Forking()


class Forking:
    """Client of the server process, which forks for each command."""

    def __init__(self):
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(other.fileno())],
                pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT)
        atexit.register(self.close)

    def close(self):
        """End the server process."""
        self._socket.close()
        self._process.wait()

    def run(self, asked, files):
        """Run a command and return (exit status, peak memory in bytes).

        The status is negative if a signal ended the command: minus the signal's number.
        """
        content = json.dumps(asked).encode("utf-8", "surrogateescape")
        self._socket.sendmsg([len(content).to_bytes(4, "little")], [
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        self._socket.sendall(content)
        pid = int(self._line(None))
        try:
            status, peak = self._line(TIMEOUT).split()
            return int(status), int(peak)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._line(None)  # discard the report that the command has ended
            raise subprocess.TimeoutExpired(asked["words"], TIMEOUT) from None

    def _line(self, seconds):
        ready, _, _ = select.select([self._socket], [], [], seconds)
        if not ready:
            raise TimeoutError
        line = b""
        while not line.endswith(b"\n"):
            piece = self._socket.recv(1)
            assert piece, "the server process has ended"
            line += piece
        return line


# -- the server process ----------------------------------------------------------------------------


def load():
    """Import all modules of the project except those in ``LEFT_OUT``."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for info in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda name: None):
            if not info.name.startswith(LEFT_OUT) and not info.name.endswith("__main__"):
                importlib.import_module(info.name)


def serve(connection):
    """Fork a child for each request on a socket, and report the child's exit status."""
    with connection:
        while True:
            size, ancillary, _flags, _address = connection.recvmsg(4, socket.CMSG_SPACE(3 * 4))
            if not size:
                return
            files = array.array("i")
            for _level, _kind, data in ancillary:
                files.frombytes(data)
            content = b""
            while len(content) < int.from_bytes(size, "little"):
                content += connection.recv(1 << 20)
            pid = os.fork()
            if not pid:
                connection.close()
                become(json.loads(content), list(files))
                return
            for descriptor in files:
                os.close(descriptor)
            connection.sendall(f"{pid}\n".encode())
            _pid, status, used = os.wait4(pid, 0)
            status, peak = os.waitstatus_to_exitcode(status), used.ru_maxrss << 10
            connection.sendall(f"{status} {peak}\n".encode())


def become(asked, files):
    """Execute a command in the forked child, which exits when this function returns."""
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(buffered(io.FileIO(number, mode, closefd=False)), "utf-8", errors,
                         line_buffering=number == 2)
        for number, mode, errors, buffered in (
            (0, "r", "surrogateescape", io.BufferedReader), (1, "w", "strict", io.BufferedWriter),
            (2, "w", "backslashreplace", io.BufferedWriter)))
    module = importlib.import_module(asked["module"])
    sys.argv = [module.__file__, *asked["words"]]
    module.main()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as served:
        load()
        serve(served)
