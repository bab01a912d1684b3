"""Constants shared by the D compiler and the executors of compiled programs.

They describe memory regions, the context of a firing, helpers, faults and aggregation functions.
Bits 48 to 63 of ``BASE`` are neither all zero nor all one, so no address of the executor's own
memory is a valid guest address.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BASE = 0x0D7A_0000_0000_0000
REGION_SHIFT = 32


class Region(enum.IntEnum):
    """Regions of memory that a program may address."""

    STACK = 0
    CONTEXT = 1
    STRINGS = 2  # string constants; read-only
    GLOBALS = 3
    LOCALS = 4  # clause-local variables
    WORK = 5  # keys under construction
    RECORD = 6  # the record under construction
    SCRATCH = 7  # alloca() and strings that subroutines return
    DYNAMIC = 8  # associative arrays and thread-local variables
    STATE = 9  # the first word is nonzero once tracing has ended

    @property
    def address(self) -> int:
        """Address of the region's first byte."""
        return BASE | self << REGION_SHIFT


class ContextOffset(enum.IntEnum):
    """Offsets of the 8-byte fields in the context of a firing."""

    PROBE = 0
    CLAUSE = 8
    ARGUMENTS = 16  # the probe's arguments: ten words
    PROVIDER = 96
    MODULE = 104
    FUNCTION = 112
    NAME = 120
    ID = 128  # the probe's ID for ``id``; places that are one probe share it, but not ``PROBE``
    TIMESTAMP = 136
    FIRST = 144  # ID of the probe's first clause
    END = 152


ARGUMENTS = 10
LONGEST_NAME = 32  # number of bytes of a process name that the runtime compares
MAX_USER_FRAMES = 2048  # maximum depth of a user stack (FreeBSD's dtrace_ustackdepth_max)


class Fault(enum.IntEnum):
    """Reasons why a clause was aborted, as numbered for the ERROR probe (DTrace guide, "ERROR")."""

    UNKNOWN = 0
    BAD_ADDRESS = 1
    BAD_ALIGNMENT = 2
    ILLEGAL_OPERATION = 3
    DIVIDE_BY_ZERO = 4
    NO_SCRATCH = 5
    KERNEL_PRIVILEGES = 6
    USER_PRIVILEGES = 7
    TUPLE_OVERFLOW = 8
    BAD_STACK = 9
    NOT_KEPT = 10  # not in FreeBSD: the argument's value cannot be determined at this probe


class Helper(enum.IntEnum):
    """Helper functions that a program may call, with arguments in r1 to r5 and the result in r0.

    Pointer arguments may be addresses of the executor's memory or of the guest's.
    """

    LOAD = 1  # (address, size): load 1, 2, 4 or 8 bytes, zero-extended
    STORE = 2  # (address, size, value): store into the executor's memory
    COPY = 3  # (to, from, size): copy bytes
    COPY_TEXT = 4  # (to, from, size): copy a string and fill the rest of ``size`` bytes with zeros
    KEY_TEXT = 5  # (to, from): append a string (length, bytes, padding) to a key; return its end
    COMPARE_TEXT = 6  # (a, b): compare two strings; return -1, 0 or 1
    FIND = 7  # (variable, key, key size): return the address of the value, or 0
    ASSIGN = 8  # (variable, key, key size, value or address of a string): assign the variable
    # (clause, size, size of the record in DTrace's buffer): open a record; return its address, or 0
    # if the record is dropped
    RECORD = 9
    COMMIT = 10  # (): complete the open record
    AGGREGATE = 11  # (aggregation, key, key size, value, increment): aggregate a value
    FAULT = 12  # (Fault, value): end the clause with a fault
    # (speculation, size of the record in DTrace's buffer): direct the record to a speculation
    SPECULATE = 13
    SPECULATION = 14  # (): return the ID of a new speculation, or 0 if none is free
    COMMIT_SPECULATION = 15
    DISCARD_SPECULATION = 16
    ALLOCATE = 17  # (size): allocate scratch memory and return its address
    STOP = 18  # (): end tracing after this firing
    COPY_REFERENCE = 19  # (to, memref() pair, maximum): copy the memory, preceded by its length
    BCOPY = 20  # (to, from, size): copy bytes to scratch memory that the clause has allocated
    DESTRUCTIVE = 40  # ID of the first helper for ``ON_HOST`` (``dtrace/d/compile/actions.py``)
    VARIABLE = 32  # (index, argument): return a variable that only the host can read
    STACK = 33  # (to, frames, user): write the addresses of a kernel or user stack
    PROGENYOF = 34  # (pid): return whether the current process is ``pid`` or one of its descendants
    SUBROUTINE = 64  # ID of the first helper for ``SUBROUTINES`` (``identifiers.py``)


# Indexes for Helper.VARIABLE: regs[], uregs[], a user address tagged with its program, and a
# register (by its DWARF number) at the entry of the probed function.
REGS, UREGS, IN_PROGRAM, ENTERED = 32, 33, 34, 35


class StepKind(enum.IntEnum):
    """Kinds of steps from a stack frame to its caller."""

    ON = 1  # the caller's frame is described by a ``FrameStep``
    TRAP = 2  # the caller is the code that a trap interrupted
    LAST = 3  # this frame is the outermost frame
    OUTSIDE = 4  # the address is not in code, so the previous frame was the outermost frame
    RECORD = 5  # of a program: the caller's frame is in the frame record
    SIGNAL = 6  # of a program: the caller is the code that a signal interrupted
    GUESS = 7  # of a program: as ``ON``, if the caller's address follows a call


class Aggregate(enum.IntEnum):
    """Aggregation functions."""

    COUNT = 1
    SUM = 2
    MIN = 3
    MAX = 4
    AVG = 5  # values: count, sum
    STDDEV = 6  # values: count, sum, sum of squares (128 bits)
    QUANTIZE = 7
    LQUANTIZE = 8
    LLQUANTIZE = 9


QUANTIZE_BUCKETS = 127
QUANTIZE_ZERO = 63  # index of the bucket for the value 0


class Policy(enum.IntEnum):
    """Buffer policy: what happens to a new record when the buffer is full."""

    SWITCH = 0  # the new record is dropped
    FILL = 1  # the new record is dropped and tracing ends
    RING = 2  # the oldest records are overwritten



@dataclass(frozen=True)
class StackShape:
    """Layout of a kernel's stack, for the runtime's native stack walks.

    :param registers: for each register that a walk needs, by name, its index among the
        dispatcher's registers.
    :param pc: the name of the program counter.
    :param sp: the name of the stack pointer.
    :param trap: (register, offset, size in bytes) of each register saved in a trap frame.
    :param low: the first address of the kernel's code.
    :param high: the end of the kernel's code.
    :param entry: the address that injected calls return to.
    :param programs: whether a probe may interrupt user code.
    :param marks: the mask of the mark bits in a frame's address, their value for an interrupted
        instruction, and their value for a return address.
    :param stackdepth: the number of the D variable ``stackdepth``; likewise for ``caller``,
        ``ustackdepth`` and ``ucaller``.
    """

    registers: Mapping[str, int]
    pc: str
    sp: str
    trap: Sequence[tuple[str, int, int]]
    low: int
    high: int
    entry: int
    programs: bool
    marks: tuple[int, int, int]
    stackdepth: int
    caller: int
    ustackdepth: int
    ucaller: int


class SpaceOffsets(NamedTuple):
    """Location of a process's memory map.

    :param process: offset of a thread's process.
    :param number: offset of the process's ID in the process; ``space`` is that of the pointer to
        its address space.
    :param changes: offset of the number of changes of the map in the address space; ``lock`` is
        that of the word of the map's lock.
    :param shared: bits of this word that are clear while a thread may change the map.
    """

    process: int
    number: int
    space: int
    changes: int
    lock: int
    shared: int


@dataclass(frozen=True)
class ProgramShape:
    """Layout of the user stack and the saved user registers of a thread in the kernel.

    :param thread_frame: offset in ``struct thread`` of the pointer to its trap frame.
    :param registers: (offset, size in bytes) in the trap frame, by index of ``uregs[]``.
    :param frame: name of the frame pointer.
    :param record: offsets in a frame record of the caller's frame and of the return address.
    :param name_variable: the number of the D variable that holds the process name.
    :param name_size: size of the process name in bytes.
    :param signal: (register, offset, size in bytes) of each register in a signal frame.
    :param space: location of the running process's map; None: unknown.
    """

    thread_frame: int
    registers: Mapping[int, tuple[int, int]]
    frame: str
    record: tuple[int, int]
    name_variable: int
    name_size: int
    signal: Sequence[tuple[str, int, int]] = ()
    space: SpaceOffsets | None = None
