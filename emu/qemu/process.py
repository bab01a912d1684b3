"""QEMU as a child process that dies with us (``setpriv --pdeathsig``).

Its gdb stub and its console are the ends of socket pairs, so that there is no port and no file; its
RAM is a memory file of ours.
"""

import contextlib
import mmap
import os
import socket
import subprocess

from emu.arch.arch import Arch
from emu.host.errors import MachineError
from emu.qemu.board import QemuBoard
from emu.qemu.boards import installed
from emu.qemu.gdb_remote import GdbRemote
from emu.qemu.registers import QemuRegisters

START = 60.0  # seconds for QEMU to start, and to answer
# It is killed when we end; if we have ended before that was arranged, it is not run at all.
IF_OURS = '[ "$PPID" = "$0" ] && exec "$@"'


class QemuProcess:
    """A QEMU that has started and stands still.

    ``gdb`` is its stub, ``registers`` what the stub has of the CPU, ``serial`` its console, ``ram``
    the descriptor of its memory file and ``view`` that file, mapped.

    :param ram: a memory file of ``size`` bytes.
    :param options: what the board needs beside the machine, the CPU and the RAM.
    :raises MachineError: when QEMU is not installed or does not start.
    """

    def __init__(self, arch: Arch, board: QemuBoard, ram: int, size: int, options: list[str]
                 ) -> None:
        self._said: bytes | None = None  # its standard error, when it has ended
        with contextlib.ExitStack() as undo:
            self._start(arch, board, ram, size, options, undo)
            self._resources = undo.pop_all()

    def _start(self, arch: Arch, board: QemuBoard, ram: int, size: int, options: list[str],
               undo: contextlib.ExitStack) -> None:
        """Start QEMU and meet its stub; what is to be undone at the end goes on the stack."""
        launcher, program = installed("setpriv"), installed(board.program)
        self.ram = os.dup(ram)
        undo.callback(os.close, self.ram)
        self.view = undo.enter_context(mmap.mmap(ram, size))
        gdb, theirs = socket.socketpair()
        undo.enter_context(gdb)
        self.serial, their_serial = socket.socketpair()
        undo.enter_context(self.serial)
        with theirs, their_serial:
            words = [
                launcher, "--pdeathsig", "KILL", "--", "/bin/sh", "-c", IF_OURS, str(os.getpid()),
                program, "-nodefaults", "-display", "none", "-no-reboot", "-S",
                "-m", f"{size >> 20}M",
                "-M", f"{board.machine},memory-backend=ram", "-cpu", board.cpu,
                "-object", f"memory-backend-file,id=ram,size={size},share=on,"
                f"mem-path=/proc/self/fd/{ram}",
                "-chardev", f"socket,id=gdb,fd={theirs.fileno()}", "-gdb", "chardev:gdb",
                "-chardev", f"socket,id=console,fd={their_serial.fileno()}",
                "-serial", "chardev:console", *options,
            ]
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True,
                pass_fds=(ram, theirs.fileno(), their_serial.fileno()))
        undo.callback(self._end)
        try:
            self.gdb = GdbRemote(gdb, START)
            self.registers = QemuRegisters(self.gdb, board, arch)
        except MachineError as error:
            raise MachineError(f"{board.program}: {self._end() or error}") from None

    def _end(self) -> str:
        """End QEMU.

        :return: the last line that it has written to its standard error.
        """
        if self._said is None:
            self.process.kill()
            _out, self._said = self.process.communicate()
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def has_ended(self) -> bool:
        """Whether QEMU has ended by itself, or is about to."""
        try:
            return self.process.wait(1) == 0
        except subprocess.TimeoutExpired:
            return False

    def close(self) -> None:
        """End QEMU, and give its memory and sockets back."""
        self._resources.close()
