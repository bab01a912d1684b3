"""Record a buffer overflow: 96 bytes are written to a 64-byte buffer.

They overwrite an entry of a kernel list that follows the buffer. The kernel only fails ten million
instructions later, when it walks the list.

    kinst record -k KERNEL -o bug.rec overflow.py
"""

from kinst_emu import KinstError, Machine

SIZE, TOO_MUCH = 64, 96
WAIT = 2  # M_WAITOK of malloc(9)
MOST = 300  # maximum number of buffers to allocate


def workload(machine: Machine) -> None:
    """Allocate buffers until a list entry directly follows a buffer, and overflow this buffer."""
    types = machine.kernel.symbol("M_TEMP")
    handler = machine.kernel.symbol("panic")
    buffers, entries = set[int](), set[int]()
    while not (before := {entry - SIZE for entry in entries} & buffers):
        buffers.add(int(machine.call("malloc", SIZE, types, WAIT)))
        entries.add(int(machine.call("eventhandler_register", 0, "a_list", handler, 0, 0)))
        if len(buffers) > MOST:
            raise KinstError("no list entry was allocated directly after a buffer")
    buffer = before.pop()
    machine.call("memset", buffer, ord("A"), TOO_MUCH)
    machine.run(instructions=10_000_000)
    machine.call("eventhandler_prune_list", machine.call("eventhandler_find_list", "a_list"))
