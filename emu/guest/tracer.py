"""What a kernel's own tracer is made of, for explanations of its firings."""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class TracerPart(Enum):
    """A part of the work that a kernel's tracer does when a probe fires; values are its names."""

    CODE = "probed code"
    TRAP = "trap"
    PROVIDER = "provider"
    PROBE = "probe"
    PREDICATE = "predicate"
    ACTION = "action"
    COPY = "copying"
    ERROR = "error"
    TRAMPOLINE = "trampoline"


class Chunks(NamedTuple):
    """How the tracer keeps the memory of its trampolines: a list of chunks, each with a bit set.

    :param first: variable that points to the first chunk; ``chunk``: type of a chunk.
    :param next: member of a chunk that points to the next one.
    :param address: member that points to the chunk's trampolines; ``size``: their size in bytes.
    :param free: member that holds the bit set, one bit for each trampoline; it is 1 if the
        trampoline is free.
    :param trampoline: size of a trampoline in bytes.
    """

    first: str
    chunk: str
    next: str
    address: str
    size: int
    free: str
    trampoline: int


class EnabledProbes(NamedTuple):
    """Where the tracer keeps its probes and what is enabled for them (ECBs).

    :param probes: variable that points to the array of pointers to all probes; the probe with the
        number N is the element N - 1.  ``probe`` is the type of a probe.
    :param names: members that lead to the parts of a probe's name: provider, module, function and
        name.
    :param first: member of a probe that points to its first ECB; ``next``: member of an ECB that
        points to the next one.
    :param number: member of an ECB with its number; ``size``: with the size of its records;
        ``predicate``: with a pointer to its predicate, whose member ``code`` points to its code.
    :param buffer: members that lead from an ECB to the first CPU's buffer; ``data`` and ``offset``
        are the buffer's members with its address and with the size of what it holds.
    :param action: member of an ECB that points to its first action; ``next_action``: member of an
        action that points to the next one; ``kind``: member with the kind.
    :param actions: kind of an action -> its name; ``aggregates``: names of those that aggregate.
    """

    probes: str
    probe: str
    names: tuple[str, str, str, str]
    first: str
    next: str
    number: str
    size: str
    predicate: str
    code: str
    buffer: str
    data: str
    offset: str
    action: str
    next_action: str
    kind: str
    actions: Mapping[int, str]
    aggregates: frozenset[str]


class TracerCode(NamedTuple):
    """The kernel's own tracer.

    :param modules: files of its kernel modules; those that a kernel does not have are not needed.
    :param provider: provider of probes on instructions, and ``functions``: on functions.
    :param fires: function that is called when a probe fires; its first argument is the probe's
        number.
    :param last_own: highest number of the tracer's own probes, such as BEGIN.
    :param handles: function to which the kernel's vectors pass breakpoints in kernel code; the trap
        frame's address is its first argument, or the stack pointer if ``frame_on_stack``.
    :param gates: functions of the kernel through which it calls a provider.
    :param in_programs: functions that handle breakpoints in programs.
    :param parts: name of a function -> the part of the work that it and its callees do.
    :param evaluates: function that evaluates a predicate or an action's argument; its first
        argument is the address of the code.
    :param reports: function that reports a fault in a predicate or an action.
    :param scratch: members that lead from the running thread to the address of a trampoline in the
        program's memory.
    :param chunks: the memory of the trampolines.
    :param enabled: the probes and what is enabled for them.
    :param copies_at_once: whether one instruction copies user memory.
    :param addresses: whether messages about faults name the address.
    """

    modules: tuple[str, ...]
    provider: str
    functions: str
    fires: str
    last_own: int
    handles: str
    frame_on_stack: bool
    gates: frozenset[str]
    in_programs: frozenset[str]
    parts: Mapping[str, TracerPart]
    evaluates: str
    reports: str
    scratch: tuple[tuple[str, str], ...]
    chunks: Chunks
    enabled: EnabledProbes
    copies_at_once: bool = False
    addresses: bool = True
