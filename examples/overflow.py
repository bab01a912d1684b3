"""A bug to be found: a buffer of 64 bytes is filled with 96, and what lies behind it is an entry of
a kernel's list.  Nothing happens, until the kernel walks the list ten million instructions later.

    kinst record -k KERNEL -o bug.rec overflow.py
"""

from kinst_emu import KinstError, Machine

SIZE, TOO_MUCH = 64, 96
WAIT = 2  # M_WAITOK
MOST = 300  # buffers


def workload(machine: Machine) -> None:
    """What is recorded."""
    types = machine.kernel.symbol("M_TEMP")
    handler = machine.kernel.symbol("panic")
    buffers, entries = set[int](), set[int]()
    while not (before := {entry - SIZE for entry in entries} & buffers):
        buffers.add(int(machine.call("malloc", SIZE, types, WAIT)))
        entries.add(int(machine.call("eventhandler_register", 0, "a_list", handler, 0, 0)))
        if len(buffers) > MOST:
            raise KinstError("no entry of the list came to lie behind a buffer")
    buffer = before.pop()
    machine.call("memset", buffer, ord("A"), TOO_MUCH)
    machine.run(instructions=10_000_000)
    machine.call("eventhandler_prune_list", machine.call("eventhandler_find_list", "a_list"))
