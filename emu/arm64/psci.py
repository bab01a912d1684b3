"""Power State Coordination Interface (DEN0022), as firmware answers HVC and SMC."""

from collections.abc import Callable

SUCCESS, NOT_SUPPORTED, INVALID, ALREADY_ON = 0, -1, -2, -4
VERSION, CPU_OFF, MIGRATE_INFO, SYSTEM_OFF, SYSTEM_RESET, FEATURES = (
    0x84000000, 0x84000002, 0x84000006, 0x84000008, 0x84000009, 0x8400000A)
CPU_ON, CPU_ON_64, AFFINITY_INFO, AFFINITY_INFO_64 = (
    0x84000003, 0xC4000003, 0x84000004, 0xC4000004)
KNOWN = {VERSION, CPU_OFF, MIGRATE_INFO, SYSTEM_OFF, SYSTEM_RESET, FEATURES, CPU_ON, CPU_ON_64,
         AFFINITY_INFO, AFFINITY_INFO_64}


def call(function: int, argument: int, shutdown: Callable[[bool], None]) -> int:
    """One call: the function's number, its first argument; there is one CPU, number 0."""
    function &= 0xFFFFFFFF
    if function == VERSION:
        return 0x10000
    if function == FEATURES:
        return SUCCESS if argument & 0xFFFFFFFF in KNOWN else NOT_SUPPORTED
    if function in (CPU_ON, CPU_ON_64):
        return ALREADY_ON if argument == 0 else INVALID
    if function in (AFFINITY_INFO, AFFINITY_INFO_64):
        return SUCCESS if argument == 0 else INVALID
    if function == MIGRATE_INFO:
        return 2
    if function in (SYSTEM_OFF, CPU_OFF):
        shutdown(False)
        return SUCCESS
    if function == SYSTEM_RESET:
        shutdown(True)
        return SUCCESS
    return NOT_SUPPORTED
