"""QEMU as a child process that is killed when this process ends, where the host can do this.

Its gdb stub and console are connected by socket pairs, which need no port and no file. Its RAM is a
memory file of this process.
"""

import contextlib
import mmap
import os
import socket
import subprocess

from emu.arch.arch import Arch
from emu.host.errors import MachineError
from emu.host.system import DESCRIPTORS, KILLED_WITH_PARENT
from emu.qemu.board import QemuBoard
from emu.qemu.boards import installed
from emu.qemu.gdb_remote import GdbRemote
from emu.qemu.registers import QemuRegisters

START = 60.0  # time limit in seconds for QEMU to start and answer
# The shell refuses to start QEMU if this process ended before --pdeathsig took effect.
IF_OURS = '[ "$PPID" = "$0" ] && exec "$@"'


class QemuProcess:
    """A QEMU process that has started, with its CPU stopped.

    :ivar gdb: the connection to its gdb stub.
    :ivar registers: the CPU's registers.
    :ivar serial: the socket of its console.
    :ivar ram: the descriptor of its memory file.
    :ivar view: the mapped memory file.

    :param ram: the descriptor of a memory file of ``size`` bytes.
    :param options: options of the board other than machine, CPU and RAM.
    :raises MachineError: if QEMU is not installed or does not start.
    """

    def __init__(self, arch: Arch, board: QemuBoard, ram: int, size: int, options: list[str]
                 ) -> None:
        self._said: bytes | None = None  # QEMU's standard error, once QEMU has exited
        with contextlib.ExitStack() as undo:
            self._start(arch, board, ram, size, options, undo)
            self._resources = undo.pop_all()

    def _start(self, arch: Arch, board: QemuBoard, ram: int, size: int, options: list[str],
               undo: contextlib.ExitStack) -> None:
        """Start QEMU, connect to its gdb stub, and register the cleanup in ``undo``."""
        launcher = [installed(name) for name in KILLED_WITH_PARENT[:1]]
        program = installed(board.program)
        self.ram = os.dup(ram)
        undo.callback(os.close, self.ram)
        self.view = undo.enter_context(mmap.mmap(ram, size))
        gdb, theirs = socket.socketpair()
        undo.enter_context(gdb)
        self.serial, their_serial = socket.socketpair()
        undo.enter_context(self.serial)
        with theirs, their_serial:
            words = [
                *launcher, *KILLED_WITH_PARENT[1:], "/bin/sh", "-c", IF_OURS, str(os.getpid()),
                program, "-nodefaults", "-display", "none", "-no-reboot", "-S",
                "-m", f"{size >> 20}M",
                "-M", f"{board.machine},memory-backend=ram", "-cpu", board.cpu,
                "-object", f"memory-backend-file,id=ram,size={size},share=on,"
                f"mem-path={DESCRIPTORS}/{ram}",
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
        """Kill QEMU and return the last line of its standard error."""
        if self._said is None:
            self.process.kill()
            _out, self._said = self.process.communicate()
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def has_ended(self) -> bool:
        """Wait up to one second for QEMU to exit, and return whether it exited normally."""
        try:
            return self.process.wait(1) == 0
        except subprocess.TimeoutExpired:
            return False

    def close(self) -> None:
        """Terminate QEMU and release its memory and sockets."""
        self._resources.close()
