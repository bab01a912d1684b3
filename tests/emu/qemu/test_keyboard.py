"""Tests that typed keys reach a guest under QEMU one by one, at the pace of the guest's reader."""

from types import SimpleNamespace

import pytest

from emu.elf.symbols import Symbol
from emu.qemu.keyboard import READER, Keyboard

POLL, CALLER, SP = 0x1000, 0x2000, 0x8000


class Guest:
    """Stand-in for a guest that polls its console; a sent byte arrives after several polls."""

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
        """Call the reader once and return the byte that it read, or -1."""
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
def test_a_byte_is_sent_after_the_reader_took_the_previous_one(link, late):
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


def test_a_return_on_another_stack_does_not_count_as_a_read():
    guest = Guest("lr", 3)
    keyboard = Keyboard(guest)
    keyboard.type(b"ab")
    guest.poll(keyboard)
    assert keyboard.at(POLL) == b""
    guest.sp, guest.value = SP + 64, 7
    assert keyboard.at(CALLER) == b"" and CALLER in keyboard.places()
    guest.sp = SP
    assert keyboard.at(CALLER) == b"" and keyboard.at(POLL) == b"b"


def test_a_kernel_without_the_reader_function_gets_all_keys_at_once():
    keyboard = Keyboard(Guest("lr", 0, reads=False))
    assert keyboard.type(b"?\r") == b"?\r" and keyboard.places() == set()
