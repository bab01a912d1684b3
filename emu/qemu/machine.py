"""Machine interface implemented with QEMU, which, unlike Unicorn, delivers exceptions itself."""

import contextlib
import os
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Self

from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import MachineError, MemoryAccessError
from emu.host.mappings import extents
from emu.host.system import memory_file
from emu.machine.machine import (
    CONSOLE_FULL,
    ConsoleLog,
    Machine,
    Stop,
    StopReason,
    Until,
    nothing_displaced,
)
from emu.qemu.board import QemuBoard
from emu.qemu.boards import BOARDS
from emu.qemu.keyboard import Keyboard
from emu.qemu.process import START, QemuProcess
from emu.unicorn.guest_memory import PAGE, MemoryImage
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot

HIDDEN = 256 << 20  # size in bytes of extra RAM above the guest's RAM, hidden from the guest
PATIENCE = 60.0  # limit in seconds for a run that neither stops nor produces output
LONGEST = 3600.0  # maximum duration of a run in seconds
CHUNK = 1 << 20


class QemuMachine(Machine):
    """A kernel on QEMU, created by ``boot`` or ``carry``.

    Close it after use, or use it in a ``with`` statement.
    Large because it implements the whole interface ``Machine``.

    :param hidden: size in bytes of the RAM after the guest's own RAM, unknown to the guest.
    :param ram: the descriptor of a memory file for all RAM.
    :raises MachineError: if QEMU is not installed or does not start.
    """

    counts: ClassVar[bool] = False
    board: QemuBoard

    def __init__(self, image: Image, memory: int, hidden: int, options: list[str],
                 ram: int) -> None:
        self.image, self.arch, self.memory = image, arch_of(image), memory
        self.guest = guest_of(image, self.arch.name)
        self.board = BOARDS[self.arch.name]
        # Limits of a run in seconds: without output, and in total.
        self.patience, self.longest = PATIENCE, LONGEST
        self.console = ConsoleLog()
        self._hidden = hidden
        self.original = nothing_displaced
        self._keyboard = Keyboard(self)
        self._handlers: dict[int, Callable[[], None]] = {}
        self._handling = False
        self._looked = 0  # end offset of the console text already searched in this run
        self._inserted: set[int] = set()
        self._panicking: int | None = None
        # While this callback is set, runs are single-stepped, and each step begins by calling it.
        self.watch: Callable[[int], None] | None = None
        self._qemu = QemuProcess(self.arch, self.board, ram, memory + hidden, options)

    @classmethod
    def boot(cls, image: Image, memory: int = 512 << 20) -> Self:
        """Return a machine on a new QEMU process, stopped before its first instruction.

        It has no hidden memory, since QEMU reports all memory to the guest.
        """
        board = BOARDS[arch_of(image).name]
        with _memory_file(memory) as ram, tempfile.TemporaryDirectory() as directory:
            # QEMU has read the files by the time its gdb stub answers.
            machine = cls(image, memory, 0, board.boot(image, memory, Path(directory)), ram)
        machine._watch_panic()
        return machine

    @classmethod
    def carry(cls, source: UnicornMachine, snapshot: Snapshot | None = None) -> Self:
        """Return a QEMU machine with another machine's memory and general and system registers.

        Devices are as after a reset and raise no interrupts.

        :param snapshot: a snapshot of the other machine's current state, if one exists already.
        """
        snapshot = snapshot or source.snapshot()
        with _memory_file(source.memory + HIDDEN) as ram:
            for at, size in snapshot.memory.extents():
                os.pwrite(ram, snapshot.memory.read(at, size), at)
            board = BOARDS[source.arch.name]
            machine = cls(source.image, source.memory, HIDDEN, list(board.carry), ram)
        with contextlib.ExitStack() as undo:
            undo.callback(machine.close)
            machine.go_back(snapshot.memory)  # undo the writes of QEMU's loader
            machine.enter(source)
            undo.pop_all()
        machine._watch_panic()
        return machine

    def enter(self, source: UnicornMachine) -> None:
        """Copy the CPU state of another machine, after that machine's memory has been copied."""
        self.board.enter(self, source)

    def run_stub(self, end: int) -> None:
        """Run code from the current pc up to an address.

        :raises MachineError: if the CPU does not reach the address.
        """
        self._insert({end})
        stop = self._go((), 0, START)
        self._insert(set())
        if stop is not None or self.pc != end:
            raise MachineError(f"{self.arch.name}: the state could not be transferred to QEMU: its "
                               f"CPU stopped at {self.pc:#x}, not at {end:#x}")

    def close(self) -> None:
        """Terminate QEMU; the machine cannot be used afterwards."""
        self._qemu.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- registers ----------------------------------------------------------------------------

    def knows(self, name: str) -> bool:
        """Return whether QEMU's gdb stub has a register."""
        return self._qemu.registers.has(name)

    def read_register(self, name: str) -> int:
        """Return the value of a register."""
        return self._qemu.registers.read(name)

    def write_register(self, name: str, value: int) -> None:
        """Set a register."""
        self._qemu.registers.write(name, value)

    def write_vector(self, name: str, value: int) -> None:
        """Set a 128-bit vector register."""
        self.write_register(name, value)

    # -- memory -------------------------------------------------------------------------------

    def _at(self, address: int, size: int) -> int:
        at = address - self.board.ram_base
        if at < 0 or at + size > self.memory + self._hidden:
            raise MemoryAccessError(f"physical memory {address:#x}..{address + size:#x} is not RAM")
        return at

    def read_physical(self, address: int, size: int) -> bytes:
        """Read RAM at a physical address."""
        at = self._at(address, size)
        return self._qemu.view[at : at + size]

    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM through QEMU, so that QEMU discards translated code; skip unchanged parts."""
        at = self._at(address, len(data))
        self._qemu.gdb.physical(True)
        for part in range(0, len(data), PAGE):
            content = data[part : part + PAGE]
            if self._qemu.view[at + part : at + part + len(content)] != content:
                self._qemu.gdb.write(address + part, content)

    def write_code(self, address: int, data: bytes) -> None:
        """Write virtual memory, for temporary breakpoints."""
        self.write(address, data)

    def hidden_memory(self, size: int) -> int:
        """Return the physical address of ``size`` bytes of memory hidden from the guest.

        :raises MachineError: if the machine does not have that much.
        """
        if size > self._hidden:
            raise MachineError("cannot reserve memory hidden from the kernel, because QEMU boots "
                               "this kernel itself; boot the kernel on the default machine and "
                               "transfer its state to QEMU")
        return self.board.ram_base + self.memory

    def release_hidden(self) -> None:
        """Do nothing: the memory is released when QEMU exits."""

    def forget_translations(self) -> None:
        """Do nothing: QEMU caches only valid page table entries, and notices writes to code."""

    def go_back(self, base: MemoryImage) -> None:
        """Restore the guest's memory to its contents in a snapshot."""
        for address in self.changed(base):
            self.write_physical(address, base.read(address - self.board.ram_base, PAGE))

    def changed(self, base: MemoryImage) -> list[int]:
        """Return the physical addresses of guest pages whose contents differ from a snapshot."""
        differing = []
        pages = sorted({at for held in (extents(self._qemu.ram, 0, self.memory), base.extents())
                        for begin, size in held
                        for at in range(begin - begin % CHUNK, begin + size, CHUNK)})
        for at in pages:
            ours, theirs = self._qemu.view[at : at + CHUNK], base.read(at, CHUNK)
            theirs = theirs.ljust(len(ours), b"\0")[: len(ours)]
            if ours != theirs:
                differing += [self.board.ram_base + at + page
                          for page in range(0, min(CHUNK, self.memory - at), PAGE)
                          if ours[page : page + PAGE] != theirs[page : page + PAGE]]
        return differing

    # -- running ------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether a handler is running."""
        return self._handling

    @property
    def instructions(self) -> int:
        """Raise an error: QEMU does not count instructions."""
        raise MachineError("the instruction count is not available: QEMU does not count "
                           "instructions")

    @property
    def now(self) -> int:
        """Raise an error: QEMU has no virtual time."""
        raise MachineError("virtual time is not available: QEMU uses the host's clock")

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` before each execution of ``address``; None removes the handler."""
        if handler is None:
            self._handlers.pop(address, None)
        else:
            self._handlers[address] = handler

    def _watch_panic(self) -> None:
        panic = self.image.symbols.find(self.guest.boot.panic)
        if panic is not None:
            self.handle(panic.address, self._panicked)

    def _panicked(self) -> None:
        """Record that the guest panics; the run continues until the panic message is printed."""
        if self._panicking is None:
            self._panicking = len(self.console.text)

    def _insert(self, wanted: set[int]) -> None:
        for address in self._inserted - wanted:
            self._qemu.gdb.remove(address, self.board.breakpoint_kind)
        for address in wanted - self._inserted:
            self._qemu.gdb.insert(address, self.board.breakpoint_kind)
        self._inserted = set(wanted)

    def step(self) -> None:
        """Execute one instruction with interrupts masked."""
        self._qemu.registers.forget()
        reply = self._qemu.gdb.step()
        if reply[:1] in ("W", "X"):
            raise MachineError("QEMU exited during a single step of the guest")

    def type(self, data: bytes) -> None:
        """Type bytes at the console; the guest receives each byte when it reads the console."""
        self._send_keys(self._keyboard.type(data))

    @property
    def keys_left(self) -> bool:
        """Whether the guest has not yet read all typed bytes."""
        return self._keyboard.left

    def _send_keys(self, data: bytes) -> None:
        try:
            self._qemu.serial.sendall(data)
        except OSError as error:
            raise MachineError(f"lost the connection to QEMU's console: {error.strerror}") from None

    def run(self, until: Until) -> Stop:
        """Run the guest until a condition of ``until`` holds or the guest ends the run.

        After a KeyboardInterrupt, the machine can only be closed.

        :raises MachineError: for a limit of instructions or virtual time.
        """
        if until.instructions is not None or until.time is not None:
            raise MachineError("QEMU cannot stop after a number of instructions or at a virtual "
                               "time, because it counts neither; stop at an address or at console "
                               "text")
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
                    self.step()  # a step ignores the breakpoint at the pc
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
        """Continue until QEMU stops; return a stop if the console or a time limit ended the run."""
        self._qemu.registers.forget()
        end = time.monotonic() + longest
        self._qemu.gdb.send("c")
        reason: StopReason | None = None
        detail = ""
        gdb, serial = self._qemu.gdb.fileno(), self._qemu.serial.fileno()
        try:
            while not self._qemu.gdb.waiting and reason is None:
                left = max(0.0, end - time.monotonic())
                ready, _w, _x = select.select([gdb, serial], [], [], min(left, self.patience))
                if serial in ready:
                    self._hear()
                    reason, detail = self._said_it(texts, start)
                if gdb in ready:
                    self._qemu.gdb.hear()
                if reason is None and not self._qemu.gdb.waiting:
                    if not ready and left > self.patience:
                        reason = StopReason.PATIENCE
                        detail = f"QEMU neither stopped nor wrote for {self.patience:g} seconds"
                    elif not ready or left == 0:
                        reason = StopReason.PATIENCE
                        detail = f"QEMU ran for {self.longest:g} seconds"
            if reason is not None:
                self._qemu.gdb.interrupt()
            gone = self._qemu.gdb.receive()[:1] in ("W", "X")
        except MachineError:
            if not self._qemu.has_ended():
                raise
            gone = True  # the guest has powered off QEMU, whose last packet may be lost
        self.drain()
        if gone:
            if self._panicking is not None:
                return Stop(StopReason.PANIC, 0, self._why())
            return Stop(StopReason.POWER_OFF, 0)
        return None if reason is None else Stop(reason, self.pc, detail)

    def _hear(self) -> bool:
        """Read available console output, and return whether any arrived."""
        try:
            data = self._qemu.serial.recv(1 << 16)
        except ConnectionError:
            return False  # QEMU has exited
        for byte in data:
            self.console.output(byte)
        return bool(data)

    def drain(self) -> None:
        """Read all console output that is available."""
        while select.select([self._qemu.serial.fileno()], [], [], 0)[0]:
            if not self._hear():
                return

    def _said_it(self, texts: tuple[bytes, ...], start: int) -> tuple[StopReason | None, str]:
        """Return (reason, detail) of the stop that new console output causes, or (None, "").

        :param start: the position in the console text where the run began.
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
        """Return the panic message that the guest has printed."""
        lines = self.console.text[self._panicking :].decode("utf-8", "replace").splitlines()
        messages = [line for line in lines if line.startswith("panic: ")]
        return messages[0].removeprefix("panic: ").strip() if messages else ""


@contextlib.contextmanager
def _memory_file(size: int) -> Iterator[int]:
    """Create a memory file and yield its descriptor; mappings of the file stay valid afterwards."""
    file = memory_file("kinst-qemu")
    try:
        os.ftruncate(file, size)
        yield file
    finally:
        os.close(file)
