"""The machine on QEMU: another CPU model, which takes its exceptions by itself.

QEMU is a child process that dies with us (``setpriv --pdeathsig``).  Its gdb stub and its console
are the ends of socket pairs, so that there is no port and no file; its RAM is a memory file of
ours.
"""

import contextlib
import mmap
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Self

from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.machine import (
    CONSOLE_FULL,
    ConsoleLog,
    Machine,
    Stop,
    StopReason,
    Until,
    nothing_displaced,
)
from emu.qemu.boards import BOARDS, installed
from emu.qemu.gdb_remote import GdbRemote, TargetRegister
from emu.qemu.keyboard import Keyboard
from emu.unicorn.guest_memory import PAGE, MemoryImage, extents
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot

HIDDEN = 256 << 20  # bytes of RAM the guest is not told of, behind its own
PATIENCE = 60.0  # seconds in which a run neither stops nor says anything
LONGEST = 3600.0  # seconds that QEMU runs for a run
START = 60.0  # seconds for QEMU to start, and to answer
CHUNK = 1 << 20

# It is killed when we end; if we have ended before that was arranged, it is not run at all.
IF_OURS = '[ "$PPID" = "$0" ] && exec "$@"'


class QemuMachine(Machine):
    """A kernel on QEMU; made by ``boot`` or ``carry``.  Close it, or use it in a ``with``.

    :param hidden: bytes of RAM behind the guest's own.
    :param ram: a memory file of all RAM.
    :raises MachineError: when QEMU is not installed or does not start.
    """

    counts: ClassVar[bool] = False

    def __init__(self, image: Image, memory: int, hidden: int, options: list[str],
                 ram: int) -> None:
        self.image, self.arch, self.memory = image, arch_of(image), memory
        self.guest = guest_of(image, self.arch.name)
        self.board = BOARDS[self.arch.name]
        # Seconds after which a run is given up: of silence, and of running.
        self.patience, self.longest = PATIENCE, LONGEST
        self.console = ConsoleLog()
        self._hidden = hidden
        self.original = nothing_displaced
        self._keyboard = Keyboard(self)
        self._handlers: dict[int, Callable[[], None]] = {}
        self._handling = False
        self._looked = 0  # up to where the console's text was looked at, in a run
        self._inserted: set[int] = set()
        self._panicking: int | None = None
        # Called before every instruction while it is set: runs are single steps then.
        self.watch: Callable[[int], None] | None = None
        self._known: dict[str, int] = {}
        self._said: bytes | None = None  # QEMU's standard error, when it has ended
        with contextlib.ExitStack() as undo:
            self._start(ram, memory + hidden, options, undo)
            self._resources = undo.pop_all()

    def _start(self, ram: int, size: int, options: list[str], undo: contextlib.ExitStack) -> None:
        """Start QEMU and meet its stub; what is to be undone at the end goes on the stack."""
        launcher, program = installed("setpriv"), installed(self.board.program)
        self._ram = os.dup(ram)
        undo.callback(os.close, self._ram)
        self._view = undo.enter_context(mmap.mmap(ram, size))
        gdb, theirs = socket.socketpair()
        undo.enter_context(gdb)
        self._serial, their_serial = socket.socketpair()
        undo.enter_context(self._serial)
        with theirs, their_serial:
            words = [
                launcher, "--pdeathsig", "KILL", "--", "/bin/sh", "-c", IF_OURS, str(os.getpid()),
                program, "-nodefaults", "-display", "none", "-no-reboot", "-S",
                "-m", f"{size >> 20}M",
                "-M", f"{self.board.machine},memory-backend=ram", "-cpu", self.board.cpu,
                "-object", f"memory-backend-file,id=ram,size={size},share=on,"
                f"mem-path=/proc/self/fd/{ram}",
                "-chardev", f"socket,id=gdb,fd={theirs.fileno()}", "-gdb", "chardev:gdb",
                "-chardev", f"socket,id=console,fd={their_serial.fileno()}",
                "-serial", "chardev:console", *options,
            ]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True,
                pass_fds=(ram, theirs.fileno(), their_serial.fileno()))
        undo.callback(self._end)
        try:
            self._gdb = GdbRemote(gdb, START)
            self._registers = self._find_registers()
        except MachineError as error:
            raise MachineError(f"{self.board.program}: {self._end() or error}") from None

    @classmethod
    def boot(cls, image: Image, memory: int = 512 << 20) -> Self:
        """A machine about to start.  QEMU tells the guest of all its memory: there is no hidden."""
        board = BOARDS[arch_of(image).name]
        with _memory_file(memory) as ram, tempfile.TemporaryDirectory() as directory:
            # QEMU has read the files when its stub answers.
            machine = cls(image, memory, 0, board.boot(image, memory, Path(directory)), ram)
        machine._watch_panic()
        return machine

    @classmethod
    def carry(cls, source: UnicornMachine, snapshot: Snapshot | None = None) -> Self:
        """A machine in the present state of another: its memory, general and system registers.
        Devices are as after a reset, and interrupt nobody.

        :param snapshot: of that state, if there is one already.
        """
        snapshot = snapshot or source.snapshot()
        with _memory_file(source.memory + HIDDEN) as ram:
            for at, size in snapshot.memory.extents():
                os.pwrite(ram, snapshot.memory.read(at, size), at)
            board = BOARDS[source.arch.name]
            machine = cls(source.image, source.memory, HIDDEN, list(board.carry), ram)
        with contextlib.ExitStack() as undo:
            undo.callback(machine.close)
            machine.go_back(snapshot.memory)  # QEMU's loader has written to it
            machine.enter(source)
            undo.pop_all()
        machine._watch_panic()
        return machine

    def enter(self, source: UnicornMachine) -> None:
        """Set the CPU to the present state of another machine, whose memory is in place already."""
        self.board.enter(self, source)

    def run_stub(self, end: int) -> None:
        """Run code of ours from the pc in force to an address.

        :raises MachineError: when it does not get there.
        """
        self._insert({end})
        stop = self._go((), 0, START)
        self._insert(set())
        if stop is not None or self.pc != end:
            raise MachineError(f"{self.arch.name}: the state could not be carried to QEMU: its CPU "
                               f"is at {self.pc:#x}, not at {end:#x}")

    # -- the process --------------------------------------------------------------------------

    def _end(self) -> str:
        """End QEMU; what it said."""
        if self._said is None:
            self._process.kill()
            _out, self._said = self._process.communicate()
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End QEMU; the machine cannot be used any more."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- registers ----------------------------------------------------------------------------

    def _find_registers(self) -> dict[str, TargetRegister]:
        found = {r.name: r for r in self._gdb.target_registers()}
        in_packet = len(self._gdb.read_registers())
        self._packet: list[TargetRegister] = []
        at = 0
        for register in sorted(found.values(), key=lambda r: r.number):
            if at >= in_packet:
                break
            self._packet.append(register)
            at += register.size
        if at != in_packet:
            raise MachineError(f"the gdb stub gives {in_packet} bytes of registers, the last of "
                               "which is not whole")
        self._packet_size = in_packet
        return found

    def knows(self, name: str) -> bool:
        """Whether QEMU's stub has a register."""
        return any(spelling in self._registers for spelling in self.board.spellings(name))

    def _register(self, name: str) -> TargetRegister:
        for spelling in self.board.spellings(name):
            if spelling in self._registers:
                return self._registers[spelling]
        raise MachineError(f"{self.arch.name} on QEMU has no register '{name}'")

    def read_register(self, name: str) -> int:
        register = self._register(name)
        if register.name not in self._known:
            if register in self._packet:
                self._read_packet()
            else:
                self._known[register.name] = self._gdb.read_register(register)
        return self._known[register.name]

    def _read_packet(self) -> None:
        data, at = self._gdb.read_registers(), 0
        if len(data) != self._packet_size:
            raise MachineError(f"the gdb stub gives {len(data)} bytes of registers, and gave "
                               f"{self._packet_size} before")
        for register in self._packet:
            self._known[register.name] = int.from_bytes(data[at : at + register.size], "little")
            at += register.size

    def write_register(self, name: str, value: int) -> None:
        if name in self.board.constants:
            return
        register = self._register(name)
        size = max(register.size, 8)
        value &= (1 << 8 * size) - 1
        if self._known.get(register.name) == value:
            return
        self._gdb.write_register(register.number, value, size)
        if name in self.arch.registers:
            self._known[register.name] = value
        else:
            self._known.clear()  # a system register may change what others read as

    def write_vector(self, name: str, value: int) -> None:
        self.write_register(name, value)

    # -- memory -------------------------------------------------------------------------------

    def _at(self, address: int, size: int) -> int:
        at = address - self.board.ram_base
        if at < 0 or at + size > self.memory + self._hidden:
            raise MemoryAccessError(f"physical {address:#x}..{address + size:#x} is not RAM")
        return at

    def read_physical(self, address: int, size: int) -> bytes:
        at = self._at(address, size)
        return self._view[at : at + size]

    def write_physical(self, address: int, data: bytes) -> None:
        """Through QEMU, which drops its translations of what is code; only what changes."""
        at = self._at(address, len(data))
        self._gdb.physical(True)
        for part in range(0, len(data), PAGE):
            content = data[part : part + PAGE]
            if self._view[at + part : at + part + len(content)] != content:
                self._gdb.write(address + part, content)

    def write_code(self, address: int, data: bytes) -> None:
        self.write(address, data)

    def hidden_memory(self, size: int) -> int:
        if size > self._hidden:
            raise MachineError("this machine has no memory that the guest does not know of: carry "
                               "a booted kernel to QEMU instead of booting it there")
        return self.board.ram_base + self.memory

    def release_hidden(self) -> None:
        pass  # it goes with the process

    def forget_translations(self) -> None:
        """QEMU keeps no page table entries that were not valid, and sees writes to code."""

    def go_back(self, base: MemoryImage) -> None:
        """Make the guest's memory what it was in a snapshot."""
        for address in self.changed(base):
            self.write_physical(address, base.read(address - self.board.ram_base, PAGE))

    def changed(self, base: MemoryImage) -> list[int]:
        """Pages, by physical address, of the guest's memory that differ from a snapshot's."""
        found = []
        pages = sorted({at for held in (extents(self._ram, 0, self.memory), base.extents())
                        for begin, size in held
                        for at in range(begin - begin % CHUNK, begin + size, CHUNK)})
        for at in pages:
            ours, theirs = self._view[at : at + CHUNK], base.read(at, CHUNK)
            theirs = theirs.ljust(len(ours), b"\0")[: len(ours)]
            if ours != theirs:
                found += [self.board.ram_base + at + page
                          for page in range(0, min(CHUNK, self.memory - at), PAGE)
                          if ours[page : page + PAGE] != theirs[page : page + PAGE]]
        return found

    # -- running ------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._handling

    @property
    def instructions(self) -> int:
        raise MachineError("QEMU does not count instructions")

    @property
    def now(self) -> int:
        raise MachineError("QEMU's time is the host's")

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        if handler is None:
            self._handlers.pop(address, None)
        else:
            self._handlers[address] = handler

    def _watch_panic(self) -> None:
        panic = self.image.symbols.find(self.guest.boot.panic)
        if panic is not None:
            self.handle(panic.address, self._panicked)

    def _panicked(self) -> None:
        """The guest panics: the run goes on until it has said why."""
        if self._panicking is None:
            self._panicking = len(self.console.text)

    def _insert(self, wanted: set[int]) -> None:
        for address in self._inserted - wanted:
            self._gdb.remove(address, self.board.breakpoint_kind)
        for address in wanted - self._inserted:
            self._gdb.insert(address, self.board.breakpoint_kind)
        self._inserted = set(wanted)

    def step(self) -> None:
        """Execute one instruction, interrupts masked."""
        self._known.clear()
        reply = self._gdb.step()
        if reply[:1] in ("W", "X"):
            raise MachineError("the guest ended QEMU")

    def type(self, data: bytes) -> None:
        """Keys pressed at the console: the guest's reader gets them, when it reads."""
        self._send_keys(self._keyboard.type(data))

    def _send_keys(self, data: bytes) -> None:
        try:
            self._serial.sendall(data)
        except OSError as error:
            raise MachineError(f"QEMU's console is gone: {error.strerror}") from None

    def run(self, until: Until) -> Stop:
        """An interrupt (KeyboardInterrupt) leaves a machine that can only be closed.

        :raises MachineError: for an end by instructions or virtual time, which QEMU does not have.
        """
        if until.instructions is not None or until.time is not None:
            raise MachineError("QEMU counts neither instructions nor virtual time")
        wanted = (until.console,) if isinstance(until.console, str) else until.console
        texts = tuple(text.encode("utf-8", "surrogateescape") for text in wanted if text)
        self._panicking = None
        stops, first = set(until.addresses), True
        left = self.longest
        start = self._looked = len(self.console.text)
        try:
            while True:
                pc = self.pc
                if pc in self._handlers:
                    self._handling = True
                    try:
                        self._handlers[pc]()
                    finally:
                        self._handling = False
                if self.pc != pc:
                    first = False
                    continue
                if pc in stops and not first:
                    return Stop(StopReason.ADDRESS, pc)
                first = False
                if self.watch is not None:
                    self.watch(pc)
                    self.step()
                    continue
                places = stops | self._handlers.keys() | self._keyboard.places()
                if pc in places:
                    self._send_keys(self._keyboard.at(pc))
                    self.step()  # a step goes over QEMU's breakpoint
                    continue
                self._insert(places)
                began = time.monotonic()
                stop = self._go(texts, start, left)
                left -= time.monotonic() - began
                if stop is not None:
                    return stop
        finally:
            self.drain()

    def _go(self, texts: tuple[bytes, ...], start: int, longest: float) -> Stop | None:
        """Continue until QEMU stops by itself (None), or the console or the clock says so."""
        self._known.clear()
        end = time.monotonic() + longest
        self._gdb.send("c")
        reason: StopReason | None = None
        detail = ""
        gdb, serial = self._gdb.fileno(), self._serial.fileno()
        try:
            while not self._gdb.waiting and reason is None:
                left = max(0.0, end - time.monotonic())
                ready, _w, _x = select.select([gdb, serial], [], [], min(left, self.patience))
                if serial in ready:
                    self._hear()
                    reason, detail = self._said_it(texts, start)
                if gdb in ready:
                    self._gdb.hear()
                if reason is None and not self._gdb.waiting:
                    if not ready and left > self.patience:
                        reason = StopReason.PATIENCE
                        detail = f"nothing was heard from QEMU for {self.patience:g} seconds"
                    elif not ready or left == 0:
                        reason = StopReason.PATIENCE
                        detail = f"QEMU ran for {self.longest:g} seconds"
            if reason is not None:
                self._gdb.interrupt()
            gone = self._gdb.receive()[:1] in ("W", "X")
        except MachineError:
            if not self._has_ended():
                raise
            gone = True  # the guest turned it off; its last packet may be lost
        self.drain()
        if gone:
            if self._panicking is not None:
                return Stop(StopReason.PANIC, 0, self._why())
            return Stop(StopReason.POWER_OFF, 0)
        return None if reason is None else Stop(reason, self.pc, detail)

    def _has_ended(self) -> bool:
        """Whether QEMU has ended by itself, or is about to."""
        try:
            return self._process.wait(1) == 0
        except subprocess.TimeoutExpired:
            return False

    def _hear(self) -> bool:
        """Take what the console says; whether it said something."""
        try:
            data = self._serial.recv(1 << 16)
        except ConnectionError:
            return False  # QEMU has ended
        for byte in data:
            self.console.output(byte)
        return bool(data)

    def drain(self) -> None:
        """What the console has said already."""
        while select.select([self._serial.fileno()], [], [], 0)[0]:
            if not self._hear():
                return

    def _said_it(self, texts: tuple[bytes, ...], start: int) -> tuple[StopReason | None, str]:
        """Whether the console has said what ends the run, since it was looked at before.

        :param start: where the text of the run begins.
        """
        seen, self._looked = self._looked, len(self.console.text)
        if self._panicking is not None:
            text, ends = self.console.text, self.guest.boot.panic_ends
            first = max(self._panicking, text.rfind(b"\n", 0, seen) + 1)
            if text.endswith(b"\n") and any(
                    line.startswith(ends) for line in bytes(text[first:]).splitlines()):
                return StopReason.PANIC, self._why()
        if self.console.full(start):
            return StopReason.OUTPUT, CONSOLE_FULL
        for wanted in texts:
            if self.console.text.find(wanted, max(start, seen - len(wanted) + 1)) >= 0:
                return StopReason.CONSOLE, wanted.decode("utf-8", "replace")
        return None, ""

    def _why(self) -> str:
        """What the guest says it panics for."""
        said = self.console.text[self._panicking :].decode("utf-8", "replace").splitlines()
        why = [line for line in said if line.startswith("panic: ")]
        return why[0].removeprefix("panic: ").strip() if why else ""


@contextlib.contextmanager
def _memory_file(size: int) -> Iterator[int]:
    """A memory file; who maps it keeps it."""
    file = os.memfd_create("kinst-qemu", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
        yield file
    finally:
        os.close(file)
