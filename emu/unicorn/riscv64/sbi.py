"""Supervisor binary interface, as firmware would answer it (RISC-V SBI specification 2.0)."""

from collections.abc import Callable
from dataclasses import dataclass

SUCCESS, FAILED, NOT_SUPPORTED, INVALID_PARAM, ALREADY_AVAILABLE = 0, -1, -2, -3, -6
STARTED, STOPPED, START_PENDING = 0, 1, 2
RFENCES = 7  # functions of the extension
EVERYBODY = (1 << 64) - 1  # as the first hart of a mask: all harts
BASE, TIME, IPI, RFENCE, HSM, SRST = 0x10, 0x54494D45, 0x735049, 0x52464E43, 0x48534D, 0x53525354
LEGACY_SET_TIMER, LEGACY_PUTCHAR, LEGACY_GETCHAR, LEGACY_SHUTDOWN = 0, 1, 2, 8
EXTENSIONS = (BASE, TIME, IPI, RFENCE, HSM, SRST)


@dataclass
class Sbi:
    """What the firmware does when called.

    :param set_timer: program the next timer interrupt, in timebase ticks.
    :param putchar: write a console byte.
    :param getchar: a typed byte, or -1.
    :param shutdown: end the machine; the argument tells whether to start again.
    :param send: interrupts to a set of harts.
    :param start: a hart at an address, with an argument; gives an error or SUCCESS.
    :param stop: the hart that calls.
    :param status: of a hart: an error or SUCCESS, and what it is.
    :param harts: how many there are.
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
        """One ECALL from S-mode.

        :return: a0 and a1; a1 is None for the legacy calls, which leave it alone.
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
        if extension < 16:  # the other legacy calls: interprocessor, as long as there was one hart
            return SUCCESS, None
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
            # Each hart comes to its turn with nothing kept of page tables.
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
        """The set that a mask and the number of its first hart say (chapter "Hart list parameter");
        None: there are none such."""
        mask, base = arguments[0], arguments[1]
        everybody = (1 << self.harts) - 1
        if base == EVERYBODY:
            return everybody
        harts = mask << base if base < self.harts else 0
        return harts if mask and harts and not harts & ~everybody else None if mask else 0
