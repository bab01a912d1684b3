"""The host's own CPU as a judge: user-level instructions run natively, in place and displaced.

They run in a child process that is nothing but an address space: traced (ptrace(2)), stripped of
every mapping but the laboratory's, and single-stepped in a way that lets no system call through
(PTRACE_SYSEMU_SINGLESTEP).  Its memory is a memory file that both sides map.
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

from emu.host.child_processes import end_with
from emu.host.errors import KinstError
from kinst.relocation.trampoline import SLOT
from kinst.verify.laboratory.memory_map import CODE, DATA, MASK, PAGE, SLOTS
from kinst.verify.laboratory.outcome import ChangedPages, Outcome

# ptrace(2), <linux/ptrace.h>
TRACEME, SINGLESTEP, GETREGS, SETREGS = 0, 9, 12, 13
SYSEMU_SINGLESTEP = 32
SETOPTIONS, GETSIGINFO, GETREGSET, SETREGSET = 0x4200, 0x4202, 0x4204, 0x4205
EXITKILL = 0x100000
NT_X86_XSTATE = 0x202
# struct user_regs_struct, <sys/user.h>
USER = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx",
        "rsi", "rdi", "orig_rax", "rip", "cs", "rflags", "rsp", "ss", "fs_base", "gs_base", "ds",
        "es", "fs", "gs")
SEGMENTS = ("cs", "ss", "ds", "es", "fs", "gs")
NULL = 3  # the last of the selectors that select nothing
NOT_COMPARED = ("orig_rax", "rip")
FAULTS = (signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
MAX_SIGNALS = 1000
# The XSAVE area (Intel SDM, volume 1, 13.4): x87 and SSE, what Linux has enabled, the header.
FCW, FTW, FIP, FDP, MXCSR, ST0, XMM0 = 0, 4, 8, 16, 24, 32, 160
ENABLED, XSTATE_BV = 464, 512
X87_SSE = 3
# Its other parts that are set at random, by their bits: the upper halves of YMM, mask registers,
# the upper halves of ZMM, ZMM16 to 31.  Where they are, a CPU says by itself.
PARTS = (2, 5, 6, 7)
CPUID, XSAVE_LEAF = b"\x0f\xa2", 0xD
STATUS, FIXED = 0x8D5, 0x202  # flags: those that are set at random; IF and the one that is 1
GADGET = 0x4002_0000  # SYSCALL, for us
SYSCALL, NOP = b"\x0f\x05", 0x90
SYS_MMAP, SYS_MUNMAP = 9, 11
MAPPED = 0x11  # MAP_SHARED | MAP_FIXED
MAX_PAGES, MAX_STEPS = 48, 4096
USER_SPACE = 1 << 47
LOWEST = 1 << 16  # vm.mmap_min_addr

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class HostError(KinstError):
    """The host does not let us judge."""


def _words(content: bytes) -> bytes:
    """Each eight bytes an address that a process can have: what returns to it does not fault."""
    found = bytearray(content)
    found[6::8] = found[7::8] = bytes(len(content) // 8)
    found[5::8] = bytes(byte & 0x3F for byte in found[5::8])
    return bytes(found)


class _Vector(ctypes.Structure):
    """struct iovec"""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Host:
    """The child process; close it, or use it in a ``with``.

    :param seed: of the contents of memory.
    :raises HostError: where processes cannot be traced.
    """

    unknown: ClassVar[str] = "SIGILL"
    compared: ClassVar[Mapping[str, int]] = {
        name: MASK for name in USER if name not in NOT_COMPARED + SEGMENTS} | {"rflags": STATUS}

    def __init__(self, seed: int) -> None:
        if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
            raise HostError("--judge host: amd64's instructions need an x86-64 Linux host")
        self._seed = seed
        self._registers = (ctypes.c_uint64 * len(USER))()
        self._state = ctypes.create_string_buffer(1 << 16)
        self.pages: dict[int, int] = {}  # guest address -> offset in the file
        self._contents: dict[int, bytes] = {}
        self._segments: dict[str, int] = {}
        self._pid = 0
        with contextlib.ExitStack() as undo:
            self._file = os.memfd_create("kinst-host")
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
        if _libc.ptrace(request, self._pid, address, data) == -1:
            raise HostError("--judge host: this host does not let a process be traced: "
                            f"ptrace: {os.strerror(ctypes.get_errno())}")

    def _start(self) -> None:
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                end_with(parent)
                # A new program stops before its first instruction: nothing of it is to run.  It is
                # no part of our terminal's session.
                os.setsid()
                os.set_inheritable(self._file, True)
                if _libc.ptrace(TRACEME, 0, None, None) == 0:
                    os.execv("/proc/self/exe", ["kinst-host"])
            finally:
                os._exit(1)
        _pid, status = os.waitpid(self._pid, 0)
        if not os.WIFSTOPPED(status) or os.WSTOPSIG(status) != signal.SIGTRAP:
            if not os.WIFSTOPPED(status):
                self._pid = 0
            raise HostError("--judge host: this host does not let a process be traced: it has no "
                            "ptrace, or no /proc")
        self._ptrace(SETOPTIONS, 0, EXITKILL)
        with open(f"/proc/{self._pid}/maps", encoding="utf-8") as file:
            maps = [line.split() for line in file]
        # A SYSCALL over the code it stopped in maps the page of ours that has another.
        self._get()
        self._segments = {name: self._value(name) for name in SEGMENTS}
        with open(f"/proc/{self._pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(self._value("rip"))
            memory.write(SYSCALL)
        self._gadget = self._value("rip")
        self.map(GADGET)
        at = self.pages[GADGET]
        self._view[at : at + PAGE] = self._contents[GADGET] = SYSCALL.ljust(PAGE, b"\xcc")
        self._gadget = GADGET
        for words in maps:
            begin, end = (int(word, 16) for word in words[0].split("-"))
            if end <= USER_SPACE and self._system_call(SYS_MUNMAP, begin, end - begin) != 0:
                raise HostError("--judge host: the child process could not be emptied")
        for page in (CODE, SLOTS, DATA):
            self.map(page)
        self._take_state()
        self._plain_state = self._area()
        self._view[self.pages[CODE]] = NOP  # one step, to see that it is possible here
        self._get()
        self._set({"rip": CODE, "orig_rax": MASK})
        if self._step(SYSEMU_SINGLESTEP) != signal.SIGTRAP:
            raise HostError("--judge host: this host does not execute step by step")
        enabled, = struct.unpack_from("<Q", self._plain_state, ENABLED)
        self._parts = {number: self._part(number) for number in PARTS if enabled >> number & 1}

    def _part(self, number: int) -> tuple[int, int]:
        """Where a part of the XSAVE area begins and ends."""
        at = self.pages[CODE]
        self._view[at : at + len(CPUID)] = CPUID
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
        """Null selectors are one: whenever the host is interrupted, its IRET makes 1 to 3 a 0."""
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
        """Execute one instruction; the signal that stopped it.  What others send is dropped: it
        comes before the instruction is executed."""
        for _attempt in range(MAX_SIGNALS):
            self._ptrace(how)
            _pid, status = os.waitpid(self._pid, 0)
            if not os.WIFSTOPPED(status):
                self._pid = 0
                raise HostError("--judge host: the process that executes instructions is gone")
            stopped = os.WSTOPSIG(status)
            if stopped in FAULTS and self._cause()[0] > 0:
                return stopped
        raise HostError("--judge host: the process that executes instructions is sent signals "
                        "without end")

    def _cause(self) -> tuple[int, int]:
        """si_code of the signal that stopped the process (positive: the kernel's own), and the
        address."""
        info = ctypes.create_string_buffer(128)
        if _libc.ptrace(GETSIGINFO, self._pid, None, ctypes.addressof(info)) == -1:
            return 0, 0  # stopped for another reason
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
        """Make the page of an address appear; false when it cannot be."""
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
        """There is hardly room for more pages."""
        return len(self.pages) > MAX_PAGES // 2

    def read(self, address: int, size: int) -> bytes:
        return bytes(self._view[self._place(i)] for i in range(address, address + size))

    def write(self, address: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            self._view[self._place(address + i)] = byte

    def _place(self, address: int) -> int:
        return self.pages[address & MASK & ~(PAGE - 1)] + (address & PAGE - 1)

    def refill(self, code: bytes) -> dict[int, bytes]:
        return self._refill(code, SLOTS, b"")

    def _refill(self, code: bytes, slot: int, body: bytes) -> dict[int, bytes]:
        """Memory as it is at the beginning."""
        found = {}
        for page, at in self.pages.items():
            content = self._contents[page]
            if page == CODE:
                content = code + content[len(code) :]
            elif page == SLOTS:
                content = content[: slot % PAGE] + body + content[slot % PAGE + len(body) :]
            if self._view[at : at + PAGE] != content:
                self._view[at : at + PAGE] = content
            found[page] = content
        return found

    def changed(self, before: dict[int, bytes], size: int) -> ChangedPages:
        """The pages that have changed; ``size`` bytes at CODE do not count."""
        found = {}
        for page, at in self.pages.items():
            content = bytes(self._view[at : at + PAGE])
            if page == CODE:
                content = before[page][:size] + content[size:]
            if content != before[page]:
                found[page] = content
        return found

    # -- experiments --------------------------------------------------------------------------

    def prepare(self, values: dict[str, int], vectors: list[int]) -> dict[str, int]:
        """The state's registers as a process can have them; vectors and x87 are set."""
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
        state[XMM0 + 128 : XMM0 + 256] = generator.randbytes(128)  # those that a cpu has not
        for number, (begin, end) in self._parts.items():
            state[begin:end] = generator.randbytes(end - begin)
            present |= 1 << number
        struct.pack_into("<Q", state, XSTATE_BV, present)
        self._start_state = bytes(state)
        return values

    def run(self, values: dict[str, int], code: bytes, slot: int, body: bytes,
            repeats: bool) -> Outcome:
        """Execute ``code`` at CODE, or the trampoline ``body`` at ``slot`` (0: there is none).

        Pages appear where they are touched; the instruction then begins anew."""
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
        """A page that was missed."""
        code, address = self._cause()
        return (code == 1 and address & ~(PAGE - 1) not in self.pages  # SEGV_MAPERR
                and self.map(address))

    def _vectors(self, begin: int) -> tuple[int, ...]:
        """x87, vector and mask registers, as the XSAVE area has them.  Of x87's instruction
        pointer it is asked whether it is the instruction's; which parts are in use is the CPU's own
        affair (Intel SDM, volume 1, 13.6: XINUSE), and Linux gives the contents of all."""
        area = bytearray(self._area())
        struct.pack_into("<Q", area, XSTATE_BV, 0)
        fip, = struct.unpack_from("<Q", area, FIP)
        struct.pack_into("<Q", area, FIP, int(begin <= fip < begin + SLOT))
        return tuple(int.from_bytes(area[at : at + 64], "little")
                     for at in range(0, len(area), 64))
