"""Members of a kernel's structures that describe the memory of user programs."""

from collections.abc import Mapping
from typing import NamedTuple


class MapMembers(NamedTuple):
    """Members that describe which files a process has mapped.

    Large because it names each member on the way from a process to the path of a file.

    A process points to its address space, whose map is a threaded binary tree of entries: an entry
    without a right child points to its successor, and the last one to the map's header.  An entry's
    object, or the objects that it shadows, may be a file.  The name cache knows names of files:
    each entry has a name and the directory in which the name is.

    :param space: (structure, member) that points to the address space.
    :param map: (structure, member) of the map in the address space.
    :param header: (structure, member) of the header in the map.
    :param changes: (structure, member) that counts the changes of the map, 32 bits.
    :param lock: (structure, member) of the word of the map's lock, of which the bits ``shared`` are
        clear while a thread may change the map.
    :param entry: structure of an entry; ``left`` to ``mapped`` are its members.
    :param mapped: the object that is mapped.
    :param object: structure of an object; ``kind``, ``shadows`` and ``file`` are its members.
    :param kind: number of the kind of the object, 8 bits.
    :param of_file: (enumeration, enumerator) of the kind of a file.
    :param shadows: the object that this one shadows, ``shadowed`` bytes after its start.
    :param file: the file, if it is one.
    :param names: (structure, member) that points from a file to its first entry in the name cache.
    :param name: structure of this entry; the next three are its members.
    :param root: (structure, member, bit) of the flag that a file is the root of a file system.
    :param mount: (structure, member) that points from a file to its file system.
    :param covered: (structure, member) that points from a file system to the directory on which it
        is mounted.
    :param calls: functions of system calls that map files, besides those that begin a program.
    """

    space: tuple[str, str]
    map: tuple[str, str]
    header: tuple[str, str]
    changes: tuple[str, str]
    lock: tuple[str, str]
    shared: int
    entry: str
    left: str
    right: str
    start: str
    end: str
    offset: str
    mapped: str
    object: str
    kind: str
    of_file: tuple[str, str]
    shadows: str
    shadowed: str
    file: str
    names: tuple[str, str]
    name: str
    directory: str
    length: str
    text: str
    root: tuple[str, str, int]
    mount: tuple[str, str]
    covered: tuple[str, str]
    calls: tuple[str, ...] = ()


class SignalFrame(NamedTuple):
    """Where a signal handler returns to, and where the registers of the interrupted code are then.

    A handler returns to code of the kernel (the signal trampoline) in a page that all processes
    share.  The stack pointer is then the address of a structure with the registers.

    :param space: (structure, member) that points from a process to its address space.
    :param page: (structure, member) of the page's address in the address space.
    :param system: (structure, member) that points from a process to its kind of programs.
    :param code: (structure, member) of the trampoline's offset in the page.
    :param inside: (structure, member) of its offset in the file that contains it (C int); 0: it is
        in no file.
    :param size: (structure, member) with the size of this file; if there is none, the member points
        to the size of the trampoline (C int).
    :param frame: structure with the registers, and the path to the one in it that has them.
    :param registers: register -> (member, index in the member, if it is an array); 8 bytes each.
    """

    space: tuple[str, str]
    page: tuple[str, str]
    system: tuple[str, str]
    code: tuple[str, str]
    inside: tuple[str, str]
    size: tuple[str, str]
    frame: tuple[str, str]
    registers: Mapping[str, tuple[str, int]]
