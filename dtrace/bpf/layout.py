"""What a D program's code and its executors agree on: regions of memory, the context of a firing,
helpers, faults, kinds of aggregations.

Addresses of the executor's own memory cannot be a guest's: bits 63 to 48 are ``BASE``, which is
neither all zero nor all one.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BASE = 0x0D7A_0000_0000_0000
REGION_SHIFT = 32


class Region(enum.IntEnum):
    """A piece of memory that a program may address; ``address`` is the place of its first byte."""

    STACK = 0
    CONTEXT = 1
    STRINGS = 2  # constants; read only
    GLOBALS = 3
    LOCALS = 4  # clause-local variables
    WORK = 5  # keys while they are made
    RECORD = 6  # the record while it is made
    SCRATCH = 7  # strings that subroutines give, alloca()
    DYNAMIC = 8  # associative arrays and thread-local variables
    STATE = 9  # word 0: whether tracing is on

    @property
    def address(self) -> int:
        return BASE | self << REGION_SHIFT


class ContextOffset(enum.IntEnum):
    """Offsets in the context, each of 8 bytes."""

    PROBE = 0
    CLAUSE = 8
    ARGUMENTS = 16  # ten
    PROVIDER = 96
    MODULE = 104
    FUNCTION = 112
    NAME = 120
    TIMESTAMP = 128
    FIRST = 136  # the number of the probe's first clause
    END = 144


ARGUMENTS = 10
LONGEST_NAME = 32  # bytes of a process's name that the runtime compares
MAX_USER_FRAMES = 2048  # dtrace_ustackdepth_max of FreeBSD's dtrace(1)


class Fault(enum.IntEnum):
    """Why a clause was ended: the numbers that the ERROR probe sees (DTrace guide, "ERROR")."""

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
    NOT_KEPT = 10  # our own: this argument cannot be known here


class Helper(enum.IntEnum):
    """What a program may call; ``r1`` to ``r5`` are the arguments, ``r0`` the result.

    Pointers are addresses of the executor's memory or the guest's, alike.
    """

    LOAD = 1  # (address, size): 1, 2, 4 or 8 bytes, zero-extended
    STORE = 2  # (address, size, value): into the executor's memory
    COPY = 3  # (to, from, size)
    COPY_TEXT = 4  # (to, from, size): a string, the rest of ``size`` bytes is zero
    KEY_TEXT = 5  # (to, from): length, bytes, zeros up to 8; the address behind
    COMPARE_TEXT = 6  # (a, b): -1, 0 or 1
    FIND = 7  # (variable, key, key's size): the address of the value, or 0
    ASSIGN = 8  # (variable, key, key's size, value or the address of a string)
    RECORD = 9  # (clause, size, size as DTrace counts): where it is made, or 0: there is no room
    COMMIT = 10  # (): the record is complete
    AGGREGATE = 11  # (aggregation, key, key's size, value, increment)
    FAULT = 12  # (Fault, value)
    SPECULATE = 13  # (speculation, size as DTrace counts): this clause's record goes there
    SPECULATION = 14  # (): a new one, or 0
    COMMIT_SPECULATION = 15
    DISCARD_SPECULATION = 16
    ALLOCATE = 17  # (size): scratch memory
    STOP = 18  # (): tracing ends after this firing
    COPY_REFERENCE = 19  # (to, memref's pair, most): the length, then the bytes
    DESTRUCTIVE = 40  # and above: ``ON_HOST`` of ``dtrace/d/compile/actions.py``
    VARIABLE = 32  # (index, argument): a variable that only the host knows
    STACK = 33  # (to, frames, user)
    PROGENYOF = 34  # (pid): whether the process is that one, or descends from it
    SUBROUTINE = 64  # and above: ``SUBROUTINES`` of ``dtrace/d/language/identifiers.py``


# For VARIABLE: registers by index, of the firing and of the user; an address of the program that
# runs, with the program.
REGS, UREGS, IN_PROGRAM = 32, 33, 34


class StepKind(enum.IntEnum):
    """What a stack does at an address."""

    ON = 1  # it goes on as a ``FrameStep`` says
    TRAP = 2  # it goes on where a trap has interrupted
    LAST = 3  # it ends there
    OUTSIDE = 4  # it has ended before


class Aggregate(enum.IntEnum):
    """Kinds of aggregations."""

    COUNT = 1
    SUM = 2
    MIN = 3
    MAX = 4
    AVG = 5  # count, sum
    STDDEV = 6  # count, sum, sum of squares (128 bits)
    QUANTIZE = 7
    LQUANTIZE = 8
    LLQUANTIZE = 9


QUANTIZE_BUCKETS = 127
QUANTIZE_ZERO = 63  # the bucket of zero


class Policy(enum.IntEnum):
    """What becomes of a record for which the buffer has no room."""

    SWITCH = 0  # it is dropped
    FILL = 1  # it is dropped, and tracing ends
    RING = 2  # the oldest give way



@dataclass(frozen=True)
class StackShape:
    """What a runtime must know to walk a kernel's stack.

    :param registers: those that matter, by name: their places among the dispatcher's.
    :param trap: (register, offset, bytes) of the frame of a trap.
    :param low: the kernel's code is from there on, below ``high``.
    :param entry: where injected calls return to.
    :param programs: whether what is interrupted may be a program.
    :param marks: of a frame's address: the bits that say what it is, how they are for an
        instruction, and for where a call returns to.
    :param stackdepth: the number of that variable; so the others.
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


@dataclass(frozen=True)
class ProgramShape:
    """The same for the stack and the registers of the program whose thread is in the kernel.

    :param thread_frame: where a thread has the address of its trap frame.
    :param registers: (offset, bytes) in that by the numbers of ``uregs[]``; ``pc`` and ``frame``
        are those of the program counter and the frame pointer.
    :param record: where a frame record has the caller's frame, and the return address.
    :param name_variable: the number of the variable with the process's name, of so many bytes.
    """

    thread_frame: int
    registers: Mapping[int, tuple[int, int]]
    pc: tuple[int, int]
    frame: tuple[int, int]
    record: tuple[int, int]
    name_variable: int
    name_size: int
