"""Search for unused guest address space, to map memory that is hidden from the guest."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class PageTables(Protocol):
    """Interface for reading a CPU's page tables: registers and physical memory."""

    def read_register(self, name: str) -> int: ...

    def read_physical(self, address: int, size: int) -> bytes: ...


LARGE = 2 << 20  # size of a large page in bytes, on all three architectures


@dataclass(frozen=True)
class Hole:
    """A range of unused address space, and the page table entries that make it executable.

    :param virtual: address of the first large page.
    :param writes: page table entries to set, as (physical address, content).
    """

    virtual: int
    writes: tuple[tuple[int, int], ...]


def find_hole(
    machine: PageTables, directory: int, pages: int, next_table: Callable[[int], int | None]
) -> int | None:
    """Return the first index of the highest ``pages`` consecutive unused entries, or None.

    An entry is unused if it is not present, or if it points to an empty table.

    :param directory: physical address of the table, which has 512 entries.
    :param pages: number of entries that the run must have.
    :param next_table: returns, for an entry, 0 if it is not present, the physical address of the
        table that it points to, or None if it maps a large page.
    """
    raw = machine.read_physical(directory, 4096)
    run = 0
    for index in range(511, -1, -1):
        table = next_table(int.from_bytes(raw[8 * index : 8 * index + 8], "little"))
        unused = table == 0 or (table is not None and not any(machine.read_physical(table, 4096)))
        run = run + 1 if unused else 0
        if run == pages:
            return index
    return None


def find_far_hole(
    machine: PageTables, directories: int, near: int, pages: int,
    next_table: Callable[[int], int | None],
) -> tuple[int, int, int] | None:
    """Find an unused range of addresses near the end of the kernel's half of the address space.

    The search goes from the last GiB that has page tables down to the GiB of ``near``, because the
    kernel's allocator hands out the space around the kernel.

    :param directories: physical address of the table of GiBs that covers the address ``near``.
    :return: virtual address of the space, its page directory, and the index of its first entry;
        None: all of the space is used.
    """
    raw = machine.read_physical(directories, 4096)
    for gib in range(511, (near >> 30 & 511) - 1, -1):
        table = next_table(int.from_bytes(raw[8 * gib : 8 * gib + 8], "little"))
        first = find_hole(machine, table, pages, next_table) if table else None
        if table and first is not None:
            return (near & -1 << 39) + (gib << 30) + (first << 21), table, first
    return None


def large_pages(directory: int, first: int, physical: int, attributes: int,
                pages: int) -> tuple[tuple[int, int], ...]:
    """Return page directory entries that map large pages at a physical address."""
    return tuple(
        (directory + 8 * (first + i), physical + i * LARGE | attributes) for i in range(pages)
    )


NO_HOLE = "the kernel's address space has no unused range for trampolines"
# Function that finds a place for executable memory near the code at ``near``, in page tables that
# all address spaces of the kernel share.  Arguments: (machine, near, physical, pages, directory).
# The memory consists of ``pages`` large pages at the aligned address ``physical``; ``directory`` is
# an empty page that can be used as a table.  The function returns None if the MMU is off, because
# physical addresses are executable then, and raises MachineError if it finds no unused range.
FindHole = Callable[[PageTables, int, int, int, int], Hole | None]
