"""Unused address space in the guest's page tables, for memory that the guest knows nothing of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class PageTables(Protocol):
    """A CPU's registers and the memory that page tables lie in."""

    def read_register(self, name: str) -> int: ...

    def read_physical(self, address: int, size: int) -> bytes: ...


LARGE = 2 << 20  # bytes of a large page, in all three architectures


@dataclass(frozen=True)
class Hole:
    """Unused address space of whole large pages: what to write to make it executable memory.

    :param writes: page table entries to set: (physical address, content).
    """

    virtual: int
    writes: tuple[tuple[int, int], ...]


def find_hole(
    machine: PageTables, directory: int, pages: int, next_table: Callable[[int], int | None]
) -> int | None:
    """The last run of unused entries of a directory of 512: the index of its first.

    Unused is an entry that is not present, or that points to a table of nothing.

    :param next_table: for an entry, 0 when it is not present, the physical address of the table
        it points to, or None when it is a large page.
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
    """A hole in the last GiB of the kernel's half that has page tables, or in an earlier one: what
    lies around the kernel is given out by its allocator.

    :param directories: physical address of the table of GiBs that the address ``near`` is in.
    :return: the hole's virtual address, its directory, and the index of its first entry there.
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
    """Entries of a directory, from the index ``first`` on, that map memory at ``physical``."""
    return tuple(
        (directory + 8 * (first + i), physical + i * LARGE | attributes) for i in range(pages)
    )


NO_HOLE = "the kernel's address space has no hole for trampolines"
# A place for memory near the code at ``near``, in tables that all address spaces of the kernel
# share: (machine, near, physical, pages, directory).  The memory is at ``physical``, on a large
# page's boundary, of so many large pages; ``directory`` is an empty page for a table, should one be
# needed.  None when the MMU is off: physical addresses are executable then.  MachineError when the
# address space has no hole.
FindHole = Callable[[PageTables, int, int, int, int], Hole | None]
