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
LARGEST = 256  # maximum size of a system call table's entry in bytes


def system_calls(image: Image, memory: VirtualMemory) -> list[StaticProbe]:
    """Return an entry and a return probe for each system call, in table order.

    Their argument types are in the debug data.

    :raises StaticProbeError: if a table is invalid or cannot be read.
    """
    probes = []
    for name, names, module in TABLES:
        table, called = image.symbols.find(name), image.symbols.find(names)
        if table is None or called is None:
            continue
        count = called.size // 8
        if not 0 < count <= MOST or table.size % count or not 16 <= table.size // count <= LARGEST:
            raise StaticProbeError(f"{image.path}: {name} has an invalid size: {table.size} bytes "
                                   f"for {count} names")
        size = table.size // count
        try:
            words = struct.unpack(f"<{count}Q", memory.read(called.address, 8 * count))
            entries = memory.read(table.address, table.size)
            for index, at in enumerate(words):
                (address,) = struct.unpack_from("<Q", entries, index * size)  # sy_call
                function = image.symbols.function_at(address)
                called_by = text(memory, at)
                result = Argument(RESULTS.get(called_by, "int"), "")
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
