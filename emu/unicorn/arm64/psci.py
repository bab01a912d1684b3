"""Power State Coordination Interface (DEN0022) calls, answered as firmware answers HVC and SMC."""

from collections.abc import Callable, Sequence

from emu.unicorn.cpu import Cpu

SUCCESS, NOT_SUPPORTED, INVALID, ALREADY_ON, ON_PENDING = 0, -1, -2, -4, -5
VERSION, CPU_OFF, MIGRATE_INFO, SYSTEM_OFF, SYSTEM_RESET, FEATURES = (
    0x84000000, 0x84000002, 0x84000006, 0x84000008, 0x84000009, 0x8400000A)
CPU_ON, CPU_ON_64, AFFINITY_INFO, AFFINITY_INFO_64 = (
    0x84000003, 0xC4000003, 0x84000004, 0xC4000004)
KNOWN = {VERSION, CPU_OFF, MIGRATE_INFO, SYSTEM_OFF, SYSTEM_RESET, FEATURES, CPU_ON, CPU_ON_64,
         AFFINITY_INFO, AFFINITY_INFO_64}
IS_ON, IS_OFF, IS_PENDING = 0, 1, 2
AFFINITY = 0xFF00FFFFFF  # affinity bits of MPIDR, which hold only the CPU number


def call(arguments: Sequence[int], cpus: Sequence[Cpu], off: Callable[[], None],
         shutdown: Callable[[bool], None]) -> int:
    """Answer one PSCI call.

    :param arguments: the function number, and three arguments.
    :param off: callback that switches off the calling CPU.
    :param shutdown: callback that ends the machine; its argument says whether to restart it.
    :return: the result for x0.
    """
    function = arguments[0] & 0xFFFFFFFF
    target = arguments[1] if not arguments[1] & ~AFFINITY else len(cpus)  # an invalid CPU number
    if function == VERSION:
        return 0x10000
    if function == FEATURES:
        return SUCCESS if arguments[1] & 0xFFFFFFFF in KNOWN else NOT_SUPPORTED
    if function in (CPU_ON, CPU_ON_64):
        if target >= len(cpus):
            return INVALID
        if cpus[target].on:
            return ON_PENDING if cpus[target].posted else ALREADY_ON
        cpus[target].post(arguments[2], arguments[3])
        return SUCCESS
    if function in (AFFINITY_INFO, AFFINITY_INFO_64):
        if target >= len(cpus):
            return INVALID
        if not cpus[target].on:
            return IS_OFF
        return IS_PENDING if cpus[target].posted else IS_ON
    if function == MIGRATE_INFO:
        return 2
    if function == CPU_OFF and len(cpus) > 1:
        off()
        return SUCCESS
    if function in (SYSTEM_OFF, CPU_OFF):
        shutdown(False)
        return SUCCESS
    if function == SYSTEM_RESET:
        shutdown(True)
        return SUCCESS
    return NOT_SUPPORTED
