"""Answers of the firmware to Supervisor Binary Interface calls (RISC-V SBI specification 2.0)."""

from collections.abc import Callable
from dataclasses import dataclass

SUCCESS, FAILED, NOT_SUPPORTED, INVALID_PARAM, ALREADY_AVAILABLE = 0, -1, -2, -3, -6
STARTED, STOPPED, START_PENDING = 0, 1, 2
RFENCES = 7  # number of functions of the RFENCE extension
EVERYBODY = (1 << 64) - 1  # hart mask base that selects all harts
BASE, TIME, IPI, RFENCE, HSM, SRST = 0x10, 0x54494D45, 0x735049, 0x52464E43, 0x48534D, 0x53525354
LEGACY_SET_TIMER, LEGACY_PUTCHAR, LEGACY_GETCHAR, LEGACY_SHUTDOWN = 0, 1, 2, 8
LEGACY_FENCES = (5, 6, 7)  # remote FENCE.I, SFENCE.VMA and SFENCE.VMA with an ASID
LEGACY = (LEGACY_SET_TIMER, LEGACY_PUTCHAR, LEGACY_GETCHAR, *LEGACY_FENCES, LEGACY_SHUTDOWN)
EXTENSIONS = (*LEGACY, BASE, TIME, IPI, RFENCE, HSM, SRST)


@dataclass
class Sbi:
    """SBI firmware, which acts on the machine through callbacks.

    :param set_timer: program the next timer interrupt, in timebase ticks.
    :param putchar: write a console byte.
    :param getchar: return a typed byte, or -1.
    :param shutdown: end the machine; the argument says whether to restart it.
    :param send: send software interrupts to a set of harts (a bit mask).
    :param start: start a hart at an address with an argument; returns SUCCESS or an error.
    :param stop: stop the calling hart.
    :param status: return SUCCESS or an error, and the state of a hart.
    :param harts: number of harts.
    """

    set_timer: Callable[[int], None]
    putchar: Callable[[int], None]
    getchar: Callable[[], int]
    shutdown: Callable[[bool], None]
    send: Callable[[int], None]
    start: Callable[[int, int, int], int]
    stop: Callable[[], None]
    status: Callable[[int], tuple[int, int]]
    harts: int = 1

    def call(self, extension: int, function: int, arguments: list[int]) -> tuple[int, int | None]:
        """Answer one ECALL from S-mode.

        :return: a0 and a1; a1 is None for the legacy calls, which do not change it.
        """
        if extension == LEGACY_SET_TIMER:
            self.set_timer(arguments[0])
            return SUCCESS, None
        if extension == LEGACY_PUTCHAR:
            self.putchar(arguments[0] & 0xFF)
            return SUCCESS, None
        if extension == LEGACY_GETCHAR:
            return self.getchar(), None
        if extension == LEGACY_SHUTDOWN:
            self.shutdown(False)
            return SUCCESS, None
        if extension in LEGACY_FENCES:  # as for RFENCE, there is nothing to fence
            return SUCCESS, None
        if extension < 16:  # the legacy calls for interprocessor interrupts: kernels use IPI
            return NOT_SUPPORTED, None
        if extension == BASE:
            answers = {0: 2 << 24, 1: 0x6B, 2: 1, 4: 0, 5: 0, 6: 0}
            if function == 3:
                return SUCCESS, int(arguments[0] in EXTENSIONS)
            if function in answers:
                return SUCCESS, answers[function]
        elif extension == TIME and function == 0:
            self.set_timer(arguments[0])
            return SUCCESS, 0
        elif extension == IPI and function == 0:
            harts = self._harts(arguments)
            if harts is None:
                return INVALID_PARAM, 0
            self.send(harts)
            return SUCCESS, 0
        elif extension == RFENCE and function < RFENCES:
            # Each hart starts its turn with an empty TLB, so there is nothing to fence.
            return (INVALID_PARAM if self._harts(arguments) is None else SUCCESS), 0
        elif extension == HSM:
            if function == 0:
                return self.start(arguments[0], arguments[1], arguments[2]), 0
            if function == 1:
                self.stop()
                return SUCCESS, 0
            if function == 2:
                return self.status(arguments[0])
        elif extension == SRST and function == 0:
            self.shutdown(arguments[0] != 0)
            return SUCCESS, 0
        return NOT_SUPPORTED, 0

    def _harts(self, arguments: list[int]) -> int | None:
        """Return the set of harts that a mask and its base select, or None for an invalid set.

        See chapter "Hart list parameter".
        """
        mask, base = arguments[0], arguments[1]
        everybody = (1 << self.harts) - 1
        if base == EVERYBODY:
            return everybody
        harts = mask << base if base < self.harts else 0
        return harts if mask and harts and not harts & ~everybody else None if mask else 0
