"""System calls and files that only Linux has; no other file uses any.

portable.py does the same for other systems, except for ``ptrace``.
"""

import contextlib
import ctypes
import functools
import mmap
import os
import signal
from pathlib import Path

PAGE = 4096
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
TRACEME = 0  # PTRACE_TRACEME of linux/ptrace.h
MADV_DONTNEED, MADV_POPULATE_WRITE = 4, 23
MAP_NORESERVE = 0x4000
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
ENTRY = 8  # size in bytes of an entry in /proc/self/pagemap; the flags are bits of its last byte
_PRESENT, _SWAPPED, _FILE = 0x80, 0x40, 0x20
_CHANGED = bytes(bool(top & (_PRESENT | _SWAPPED)) and not top & _FILE for top in range(256))
DESCRIPTORS = "/proc/self/fd"  # directory in which a process finds its open files
# setpriv(1) of util-linux: starts a program that is killed when its parent ends.
KILLED_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")

_long, _pointer, _size, _int, _offset = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64)
_TYPES = {
    "madvise": (_int, (_pointer, _size, _int)),
    "fallocate": (_int, (_int, _int, _offset, _offset)),
    "prctl": (_int, (_int, _long)),
    "ptrace": (_long, (_long, _long, _pointer, _pointer)),
}


@functools.cache
def _function(name: str) -> "ctypes._NamedFuncPointer":
    """Return a function of the C library that sets errno."""
    function = ctypes.CDLL(None, use_errno=True)[name]
    function.restype, function.argtypes = _TYPES[name]
    return function


def _failed(call: str) -> OSError:
    """Return the error of the C library's last call."""
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


# -- memory -------------------------------------------------------------------------------------


def memory_file(name: str) -> int:
    """Create a file in memory, and return its descriptor (memfd_create(2)).

    :raises OSError: if the host cannot create one.
    """
    return os.memfd_create(name, os.MFD_CLOEXEC)


def release(file: int, at: int, size: int) -> bool:
    """Fill a part of a file with zeros and free its memory; return whether this succeeded."""
    return bool(_function("fallocate")(
        file, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, at, size) == 0)


def discard(address: int, size: int, _file: int, _at: int) -> None:
    """Undo all writes to a private mapping.

    :param address: of the mapping, of ``size`` bytes.
    :raises OSError: if the host cannot.
    """
    if _function("madvise")(address, size, MADV_DONTNEED) != 0:
        raise _failed("madvise")


def populate(address: int, size: int) -> None:
    """Let the host allocate pages that are about to be written, all at once."""
    _function("madvise")(address, size, MADV_POPULATE_WRITE)


def changed(address: int, size: int, _file: int, _at: int) -> bytearray:
    """Return one byte per page of a private mapping: 1 if the page was written, 0 if not.

    In a mapping of zeros, a page that was only read may count as written.

    :raises OSError: if the host does not show its page tables.
    """
    with open("/proc/self/pagemap", "rb", buffering=0 if size == PAGE else -1) as file:
        file.seek(address // PAGE * ENTRY)
        entries = file.read(size // PAGE * ENTRY)
    return bytearray(entries[ENTRY - 1 :: ENTRY].translate(_CHANGED))


def use_huge_pages(memory: mmap.mmap) -> None:
    """Reduce the number of page faults, where the host supports this."""
    with contextlib.suppress(OSError):  # the host kernel may not support huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)


def try_address_space(size: int) -> None:
    """Check whether so much address space for executable code is left.

    :raises OSError: if it is not.
    """
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE,
              prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


# -- processes ----------------------------------------------------------------------------------


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def end_with(parent: int) -> None:
    """Tell the host's kernel to kill this process when its parent ends; exit if it has ended.

    To the kernel, the parent is the thread that started this process: that thread must live as long
    as the process is needed.

    :param parent: process ID of the parent.
    """
    _function("prctl")(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def parent_of(pid: int) -> int:
    """Return the parent ID of a process, or 0 if the ID is unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def boot_id() -> str:
    """Return digits that identify the host's current boot, or "" if it does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()[:8]
    except OSError:
        return ""


# -- processes that are traced ------------------------------------------------------------------


def ptrace(request: int, pid: int, address: int, data: int) -> None:
    """Trace a process (ptrace(2)).

    :raises OSError: if the call fails.
    """
    if _function("ptrace")(request, pid, address, data) == -1:
        raise _failed("ptrace")


def stop_in_new_program() -> None:
    """Start another program in this process; it stops before its first instruction.

    The parent process then traces it.

    :raises OSError: if the host does not allow processes to be traced.
    """
    ptrace(TRACEME, 0, 0, 0)
    os.execv("/proc/self/exe", ["kinst-host"])


def mappings(pid: int) -> list[tuple[int, int]]:
    """Return the (start, end) of each mapping of a process."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return [(int(begin, 16), int(end, 16))
                for begin, end in (line.split()[0].split("-") for line in file)]


def write_memory(pid: int, address: int, content: bytes) -> None:
    """Write to the memory of a process that this process traces."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        memory.write(content)
