"""Probes of the kernel's system calls, named as in systrace(4).

For each kind of program there is a table of functions (``struct sysent`` of ``sys/sys/sysent.h``),
and a table of names.  Module and names are those of the provider for that kind.
"""

import struct

from emu.elf.image import Image
from emu.guest.guest import VirtualMemory
from emu.guest.static_probe import Argument, CallTable, StaticProbe, StaticProbeError, SystemCall
from emu.guests.freebsd.strings import text
from emu.host.errors import MemoryAccessError

PROVIDER = "syscall"
# System call tables: (table of functions, table of names, module of the probes)
TABLES = (("sysent", "syscallnames", "freebsd"),
          ("freebsd32_sysent", "freebsd32_syscallnames", "freebsd32"))
MOST = 4096  # maximum number of system calls in a table
# Return types other than int (sys/kern/syscalls.master), which are not in the debug data.
RESULTS = {name: kind for kind, names in {
    "void": "_exit thr_exit abort2",
    "ssize_t": "read write readv writev pread pwrite preadv pwritev recvmsg sendmsg recvfrom "
               "sendto readlink readlinkat msgrcv aio_return aio_waitcomplete copy_file_range "
               "getdirentries cap_ioctls_get extattr_set_file extattr_get_file extattr_list_file "
               "extattr_set_fd extattr_get_fd extattr_list_fd extattr_set_link extattr_get_link "
               "extattr_list_link",
    "void *": "break shmat mmap", "mode_t": "umask", "off_t": "lseek"}.items()
    for name in names.split()}
SMALLEST, LARGEST = 16, 256  # minimum and maximum size of a system call table's entry in bytes


def system_calls(image: Image, memory: VirtualMemory) -> list[StaticProbe]:
    """Return an entry and a return probe for each system call, in table order.

    Their argument types are in the debug data.

    :raises StaticProbeError: if a table is invalid or cannot be read.
    """
    probes = []
    seen = set[tuple[str, str]]()  # modules and names
    for name, names, module in TABLES:
        table, called = image.symbols.find(name), image.symbols.find(names)
        if table is None or called is None:
            continue
        if called.size > 2 * 8 * MOST or table.size > LARGEST * MOST:
            raise StaticProbeError(f"{image.path}: {name} and {names} have {table.size} and "
                                   f"{called.size} bytes, which is too much")
        try:
            words = _words(memory.read(called.address, called.size & -8))
            entries = memory.read(table.address, table.size)
            count = words.index(0) if 0 in words else len(words)
            size = _entry_size(image, entries, count)
            if not 0 < count <= MOST or not size:
                raise StaticProbeError(f"{image.path}: {name} has an invalid size: {table.size} "
                                       f"bytes for {count} names")
            for index, at in enumerate(words[:count]):
                (address,) = struct.unpack_from("<Q", entries, index * size)  # sy_call
                function = image.symbols.function_at(address)
                called_by = text(memory, at)
                if (module, called_by) in seen:  # systrace(4) has one probe for the first of them
                    continue
                seen.add((module, called_by))
                plain = called_by.removeprefix(f"{module}_")
                result = Argument(RESULTS.get(plain, "int"), "")
                for returns in (False, True):
                    probes.append(StaticProbe(
                        PROVIDER, module, called_by, "return" if returns else "entry",
                        (result, result) if returns else (), (),
                        SystemCall(CallTable(table.address, size, count), index,
                                   "" if function is None else function.name, returns)))
        except MemoryAccessError as error:
            raise StaticProbeError(f"{image.path}: {name} cannot be read: {error}; "
                                   "boot the kernel first") from None
    return probes


def _words(content: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(content) // 8}Q", content)


def _entry_size(image: Image, table: bytes, count: int) -> int:
    """Return the size of an entry of a table of system calls, or 0 if it is unknown.

    A kernel with a sanitizer has unused bytes after the table; each entry begins with the address
    of a function.
    """
    most = len(table) // max(count, 1)
    divided = most if count and len(table) % count == 0 and SMALLEST <= most <= LARGEST else 0
    sizes: list[int] = [divided, *range(SMALLEST, min(LARGEST, most) + 1, 8)]
    for size in sizes:
        calls = (int.from_bytes(table[size * n : size * n + 8], "little") for n in range(count))
        if size and all((function := image.symbols.function_at(call)) is not None
                        and function.address == call for call in calls):
            return size
    return divided  # a stripped kernel does not name all functions
