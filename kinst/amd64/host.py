"""Native execution of user-level instructions on the host's CPU, in place and displaced.

The instructions run in a child process that consists only of an address space.  It is traced by
ptrace, has no mappings except the laboratory's, and is single-stepped in a way that blocks system
calls (PTRACE_SYSEMU_SINGLESTEP).  Its memory is a memory file that both processes map.
"""

import contextlib
import ctypes
import mmap
import os
import random
import signal
import struct
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar

from emu.host import linux
from emu.host.errors import KinstError
from kinst.relocation.trampoline import SLOT
from kinst.verify.laboratory.memory_map import CODE, DATA, MASK, PAGE, SLOTS
from kinst.verify.laboratory.outcome import ChangedPages, Outcome

# Constants of ptrace(2), from <linux/ptrace.h>
SINGLESTEP, GETREGS, SETREGS = 9, 12, 13
SYSEMU_SINGLESTEP = 32
SETOPTIONS, GETSIGINFO, GETREGSET, SETREGSET = 0x4200, 0x4202, 0x4204, 0x4205
EXITKILL = 0x100000
NT_X86_XSTATE = 0x202
# Members of struct user_regs_struct, from <sys/user.h>
USER = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx",
        "rsi", "rdi", "orig_rax", "rip", "cs", "rflags", "rsp", "ss", "fs_base", "gs_base", "ds",
        "es", "fs", "gs")
SEGMENTS = ("cs", "ss", "ds", "es", "fs", "gs")
NULL = 3  # the highest null selector
NOT_COMPARED = ("orig_rax", "rip")
FAULTS = (signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
MAX_SIGNALS = 1000
# Offsets in the XSAVE area (Intel SDM, volume 1, 13.4) of x87 and SSE registers (first line),
# the mask of the components that Linux has enabled, and the header (second line)
FCW, FTW, FIP, FDP, MXCSR, ST0, XMM0 = 0, 4, 8, 16, 24, 32, 160
ENABLED, XSTATE_BV = 464, 512
X87_SSE = 3
# Numbers of the other state components that are randomized: upper halves of YMM, mask
# registers, upper halves of ZMM, and ZMM16 to ZMM31.  CPUID reports the components' locations.
PARTS = (2, 5, 6, 7)
CPUID, XSAVE_LEAF = b"\x0f\xa2", 0xD
# bits of RFLAGS that are randomized; bits of RFLAGS that are always set (IF and bit 1)
STATUS, FIXED = 0x8D5, 0x202
GADGET = 0x4002_0000  # address of a SYSCALL instruction with which kinst-emu makes system calls
SYSCALL, NOP = b"\x0f\x05", 0x90
SYS_MMAP, SYS_MUNMAP = 9, 11
MAPPED = 0x11  # MAP_SHARED | MAP_FIXED
MAX_PAGES, MAX_STEPS = 48, 4096
USER_SPACE = 1 << 47
LOWEST = 1 << 16  # vm.mmap_min_addr


class HostError(KinstError):
    """Error raised if the host's CPU cannot be used to execute instructions."""


def _words(content: bytes) -> bytes:
    """Return ``content`` with each eight-byte word changed to an address that a process can have.

    A return to any other word could fault.
    """
    words = bytearray(content)
    words[6::8] = words[7::8] = bytes(len(content) // 8)
    words[5::8] = bytes(byte & 0x3F for byte in words[5::8])
    return bytes(words)


class _Vector(ctypes.Structure):
    """``struct iovec`` of the host."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Host:
    """Child process that executes instructions; call ``close`` or use a ``with`` statement.

    :param seed: random seed of the memory contents.
    :raises HostError: when the host is not x86-64 Linux or does not allow tracing.
    """

    unknown: ClassVar[str] = "SIGILL"
    compared: ClassVar[Mapping[str, int]] = {
        name: MASK for name in USER if name not in NOT_COMPARED + SEGMENTS} | {"rflags": STATUS}

    def __init__(self, seed: int) -> None:
        if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
            raise HostError("--judge host: amd64 instructions require an x86-64 Linux host")
        self._seed = seed
        self._registers = (ctypes.c_uint64 * len(USER))()
        self._state = ctypes.create_string_buffer(1 << 16)
        self.pages: dict[int, int] = {}  # page address -> offset in the memory file
        self._contents: dict[int, bytes] = {}
        self._segments: dict[str, int] = {}
        self._pid = 0
        with contextlib.ExitStack() as undo:
            self._file = linux.memory_file("kinst-host")
            undo.callback(os.close, self._file)
            os.ftruncate(self._file, MAX_PAGES * PAGE)
            self._view = undo.enter_context(mmap.mmap(self._file, MAX_PAGES * PAGE))
            undo.callback(self._kill)
            self._start()
            self._undo = undo.pop_all()

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        self._undo.close()

    def _kill(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    # -- the process --------------------------------------------------------------------------

    def _ptrace(self, request: int, address: int = 0, data: int = 0) -> None:
        try:
            linux.ptrace(request, self._pid, address, data)
        except OSError as error:
            raise HostError("--judge host: this host does not allow processes to be traced: "
                            f"{error.strerror}") from None

    def _start(self) -> None:
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                linux.end_with(parent)
                # The exec stops before the new program's first instruction, so the program never
                # runs.  The new session detaches the child from the terminal.
                os.setsid()
                os.set_inheritable(self._file, True)
                linux.stop_in_new_program()
            finally:
                os._exit(1)
        _pid, status = os.waitpid(self._pid, 0)
        if not os.WIFSTOPPED(status) or os.WSTOPSIG(status) != signal.SIGTRAP:
            if not os.WIFSTOPPED(status):
                self._pid = 0
            raise HostError("--judge host: this host does not allow processes to be traced: ptrace "
                            "or /proc is missing")
        self._ptrace(SETOPTIONS, 0, EXITKILL)
        mappings = linux.mappings(self._pid)
        # Use a SYSCALL instruction at the child's pc to map the page of GADGET.  All later system
        # calls use the SYSCALL instruction at GADGET.
        self._get()
        self._segments = {name: self._value(name) for name in SEGMENTS}
        linux.write_memory(self._pid, self._value("rip"), SYSCALL)
        self._gadget = self._value("rip")
        self.map(GADGET)
        at = self.pages[GADGET]
        self._view[at : at + PAGE] = self._contents[GADGET] = SYSCALL.ljust(PAGE, b"\xcc")
        self._gadget = GADGET
        for begin, end in mappings:
            if end <= USER_SPACE and self._system_call(SYS_MUNMAP, begin, end - begin) != 0:
                raise HostError(f"--judge host: munmap of {begin:#x}..{end:#x} failed in the child "
                                "process")
        for page in (CODE, SLOTS, DATA):
            self.map(page)
        self._take_state()
        self._plain_state = self._area()
        self._view[self.pages[CODE]] = NOP  # single-step once, to check that the host supports it
        self._get()
        self._set({"rip": CODE, "orig_rax": MASK})
        if self._step(SYSEMU_SINGLESTEP) != signal.SIGTRAP:
            raise HostError("--judge host: this host does not support PTRACE_SYSEMU_SINGLESTEP")
        enabled, = struct.unpack_from("<Q", self._plain_state, ENABLED)
        self._parts = {number: self._part(number) for number in PARTS if enabled >> number & 1}

    def _part(self, number: int) -> tuple[int, int]:
        """Return the start and the end of a state component in the XSAVE area."""
        code = self.pages[CODE]
        self._view[code : code + len(CPUID)] = CPUID
        self._get()
        self._set({"rip": CODE, "orig_rax": MASK, "rax": XSAVE_LEAF, "rcx": number})
        self._step(SYSEMU_SINGLESTEP)
        self._get()
        begin = self._value("rbx")
        return begin, begin + self._value("rax")

    def _get(self) -> None:
        self._ptrace(GETREGS, 0, ctypes.addressof(self._registers))

    def _set(self, values: dict[str, int]) -> None:
        values = values | self._segments
        for number, name in enumerate(USER):
            if name in values:
                self._registers[number] = values[name] & MASK
        self._ptrace(SETREGS, 0, ctypes.addressof(self._registers))

    def _value(self, name: str) -> int:
        return int(self._registers[USER.index(name)])

    def _register(self, name: str) -> int:
        """Return a register's value; every null selector reads as 0.

        Whenever the host is interrupted, its IRET changes the null selectors 1 to 3 to 0.
        """
        value = self._value(name)
        return 0 if name in SEGMENTS and value <= NULL else value

    def _take_state(self) -> None:
        vector = _Vector(ctypes.addressof(self._state), len(self._state))
        self._ptrace(GETREGSET, NT_X86_XSTATE, ctypes.addressof(vector))
        self._state_size = int(vector.size)

    def _area(self) -> bytes:
        return ctypes.string_at(ctypes.addressof(self._state), self._state_size)

    def _put_state(self, content: bytes) -> None:
        ctypes.memmove(self._state, content, len(content))
        vector = _Vector(ctypes.addressof(self._state), len(content))
        self._ptrace(SETREGSET, NT_X86_XSTATE, ctypes.addressof(vector))

    def _step(self, how: int) -> int:
        """Execute one instruction and return the signal that stopped the process.

        Signals from other processes arrive before the instruction is executed; they are dropped.
        """
        for _attempt in range(MAX_SIGNALS):
            self._ptrace(how)
            _pid, status = os.waitpid(self._pid, 0)
            if not os.WIFSTOPPED(status):
                self._pid = 0
                raise HostError("--judge host: the child process ended unexpectedly")
            stopped = os.WSTOPSIG(status)
            if stopped in FAULTS and self._cause()[0] > 0:
                return stopped
        raise HostError("--judge host: other processes keep sending signals to the child process, "
                        "so it cannot execute instructions")

    def _cause(self) -> tuple[int, int]:
        """Return si_code of the signal that stopped the process, and the fault address.

        A positive si_code means that the kernel itself raised the signal.
        """
        info = ctypes.create_string_buffer(128)
        try:
            linux.ptrace(GETSIGINFO, self._pid, 0, ctypes.addressof(info))
        except OSError:
            return 0, 0  # this stop has no signal information
        return (int.from_bytes(info.raw[8:12], "little", signed=True),
                int.from_bytes(info.raw[16:24], "little"))

    def _system_call(self, number: int, *arguments: int) -> int:
        names = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
        self._get()
        self._set(dict(zip(names, arguments, strict=False))
                  | {"rax": number, "rip": self._gadget, "orig_rax": MASK})
        self._step(SINGLESTEP)
        self._get()
        return self._value("rax")

    # -- memory -------------------------------------------------------------------------------

    def map(self, address: int) -> bool:
        """Map the page that contains an address; return whether this succeeded."""
        page = address & MASK & ~(PAGE - 1)
        if page in self.pages:
            return True
        if len(self.pages) == MAX_PAGES or not LOWEST <= page < USER_SPACE - PAGE:
            return False
        at = len(self.pages) * PAGE
        if self._system_call(SYS_MMAP, page, PAGE, 7, MAPPED, self._file, at) != page:
            return False
        self.pages[page] = at
        self._contents[page] = _words(random.Random(self._seed ^ page).randbytes(PAGE))
        self._view[at : at + PAGE] = self._contents[page]
        return True

    @property
    def crowded(self) -> bool:
        """Whether more than half of the pages that can be mapped are in use."""
        return len(self.pages) > MAX_PAGES // 2

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes of the child's memory."""
        return bytes(self._view[self._place(i)] for i in range(address, address + size))

    def write(self, address: int, data: bytes) -> None:
        """Write to the child's memory."""
        for i, byte in enumerate(data):
            self._view[self._place(address + i)] = byte

    def _place(self, address: int) -> int:
        return self.pages[address & MASK & ~(PAGE - 1)] + (address & PAGE - 1)

    def refill(self, code: bytes) -> dict[int, bytes]:
        """Restore the initial memory, with ``code`` at CODE; return the contents of each page."""
        return self._refill(code, SLOTS, b"")

    def _refill(self, code: bytes, slot: int, body: bytes) -> dict[int, bytes]:
        """Restore the initial memory, with ``code`` at CODE and a trampoline ``body`` at ``slot``.

        :return: page address -> contents.
        """
        contents = {}
        for page, at in self.pages.items():
            content = self._contents[page]
            if page == CODE:
                content = code + content[len(code) :]
            elif page == SLOTS:
                content = content[: slot % PAGE] + body + content[slot % PAGE + len(body) :]
            if self._view[at : at + PAGE] != content:
                self._view[at : at + PAGE] = content
            contents[page] = content
        return contents

    def changed(self, before: dict[int, bytes], size: int) -> ChangedPages:
        """Return the contents of the changed pages, ignoring ``size`` bytes at CODE."""
        pages = {}
        for page, at in self.pages.items():
            content = bytes(self._view[at : at + PAGE])
            if page == CODE:
                content = before[page][:size] + content[size:]
            if content != before[page]:
                pages[page] = content
        return pages

    # -- experiments --------------------------------------------------------------------------

    def prepare(self, values: dict[str, int], vectors: list[int]) -> dict[str, int]:
        """Return a random state's registers, restricted to values that a process can have.

        Vector and x87 registers are prepared for the next run.
        """
        values = dict(values)
        for base in ("fs_base", "gs_base"):
            values[base] &= USER_SPACE // 2 - 1
        values["rflags"] = values["rflags"] & STATUS | FIXED
        state = bytearray(self._plain_state)
        struct.pack_into("<H", state, FCW, values["fpcw"])
        state[FTW] = 0xFF
        struct.pack_into("<QQ", state, FIP, 0, 0)
        struct.pack_into("<I", state, MXCSR, values["mxcsr"])
        for i in range(8):
            struct.pack_into("<QQ", state, XMM0 + 16 * i, vectors[i] & MASK, vectors[i] >> 64)
            state[ST0 + 16 * i : ST0 + 16 * i + 10] = vectors[8 + i].to_bytes(10, "little")
        present, = struct.unpack_from("<Q", state, XSTATE_BV)
        present |= X87_SSE
        generator = random.Random(vectors[0])
        # XMM8 to XMM15, which ``vectors`` does not contain
        state[XMM0 + 128 : XMM0 + 256] = generator.randbytes(128)
        for number, (begin, end) in self._parts.items():
            state[begin:end] = generator.randbytes(end - begin)
            present |= 1 << number
        struct.pack_into("<Q", state, XSTATE_BV, present)
        self._start_state = bytes(state)
        return values

    def run(self, values: dict[str, int], code: bytes, slot: int, body: bytes,
            repeats: bool) -> Outcome:
        """Execute ``code`` at CODE or, if ``slot`` is not 0, the trampoline ``body`` at ``slot``.

        Pages are mapped when the instruction touches them; it then starts again.
        """
        pc = CODE
        while True:
            before = self._refill(code, slot or SLOTS, body)
            self._put_state(self._start_state)
            begin = slot or CODE
            self._set(values | {"rip": begin, "orig_rax": MASK})
            fault = ""
            for _count in range(MAX_STEPS):
                stopped = self._step(SYSEMU_SINGLESTEP)
                self._get()
                pc = self._value("rip")
                if stopped != signal.SIGTRAP:
                    fault = signal.Signals(stopped).name
                    break
                if not (slot <= pc < slot + len(body) if slot else repeats and pc == CODE):
                    break
            if fault == "SIGSEGV" and self._appears():
                continue
            break
        if fault and slot <= pc < slot + len(body):
            pc = CODE
        self._take_state()
        return Outcome(
            {name: self._register(name) for name in USER if name not in NOT_COMPARED},
            self._vectors(begin), self.changed(before, len(code)), pc, fault)

    def _appears(self) -> bool:
        """Map the page that was missing at the last fault; return whether a page was mapped."""
        code, address = self._cause()
        return (code == 1 and address & ~(PAGE - 1) not in self.pages  # SEGV_MAPERR
                and self.map(address))

    def _vectors(self, begin: int) -> tuple[int, ...]:
        """Return the x87, vector and mask registers as 64-byte pieces of the XSAVE area.

        x87's instruction pointer is replaced by whether it points to the executed code.  The set of
        components in use is omitted: it is up to the CPU (Intel SDM, volume 1, 13.6: XINUSE), and
        Linux provides the contents of all components.
        """
        area = bytearray(self._area())
        struct.pack_into("<Q", area, XSTATE_BV, 0)
        fip, = struct.unpack_from("<Q", area, FIP)
        struct.pack_into("<Q", area, FIP, int(begin <= fip < begin + SLOT))
        return tuple(int.from_bytes(area[at : at + 64], "little")
                     for at in range(0, len(area), 64))
