"""Keys wait for the guest's reader, and go to it one by one."""

from types import SimpleNamespace

import pytest

from emu.elf.symbols import Symbol
from emu.qemu.keyboard import READER, Keyboard

POLL, CALLER, SP = 0x1000, 0x2000, 0x8000


class Guest:
    """Polls its console; a byte sent arrives some polls later."""

    def __init__(self, link, late, reads=True):
        self.image = SimpleNamespace(symbols=self)
        self.arch = SimpleNamespace(link=link, result="r0", stack_after_return=self.after,
                                    return_address=self.back)
        self.link, self.late, self.reads = link, late, reads
        self.sp, self.value, self.line = SP, 0, []

    def find(self, name):
        return Symbol(READER, POLL, 16, 2) if self.reads and name == READER else None

    def after(self, machine):
        return SP

    def back(self, machine):
        return CALLER

    def read_register(self, name):
        return {"r0": self.value & 0xFFFFFFFFFFFFFFFF}[name]

    def poll(self, keyboard):
        """One call of the reader; what it gives."""
        self.sp = SP - 8 if self.link is None else SP
        if POLL in keyboard.places():
            self.line += [(self.late, byte) for byte in keyboard.at(POLL)]
        self.value = -1
        if self.line:
            left, byte = self.line[0]
            self.line[0] = left - 1, byte
            if left == 0:
                self.value = byte
                del self.line[0]
        self.sp = SP
        if CALLER in keyboard.places():
            assert keyboard.at(CALLER) == b""
        return self.value


@pytest.mark.parametrize("late", [0, 1, 5])
@pytest.mark.parametrize("link", [None, "lr"])
def test_a_byte_is_sent_when_the_reader_has_taken_the_one_before(link, late):
    guest = Guest(link, late)
    keyboard = Keyboard(guest)
    assert keyboard.places() == set() and guest.poll(keyboard) == -1
    assert keyboard.type(b"?\r") == b"" and keyboard.type(b"x") == b""
    read = bytearray()
    for _ in range(3 * (late + 1)):
        value = guest.poll(keyboard)
        assert len(guest.line) <= 1
        read += bytes([value]) if value >= 0 else b""
    assert read == b"?\rx" and keyboard.places() == set()


def test_a_return_on_another_stack_is_not_the_readers():
    guest = Guest("lr", 3)
    keyboard = Keyboard(guest)
    keyboard.type(b"ab")
    guest.poll(keyboard)
    assert keyboard.at(POLL) == b""
    guest.sp, guest.value = SP + 64, 7
    assert keyboard.at(CALLER) == b"" and CALLER in keyboard.places()
    guest.sp = SP
    assert keyboard.at(CALLER) == b"" and keyboard.at(POLL) == b"b"


def test_a_kernel_without_that_reader_gets_all_at_once():
    keyboard = Keyboard(Guest("lr", 0, reads=False))
    assert keyboard.type(b"?\r") == b"?\r" and keyboard.places() == set()
