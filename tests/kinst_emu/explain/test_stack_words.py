"""Tests of recorded changes to stack words."""

from emu.host.errors import MemoryAccessError
from kinst_emu.explain.record.stack_words import ABOVE, BEYOND, StackWords

BASE, SIZE = 0x10000, 0x4000


class Memory:
    def __init__(self, sp):
        self.sp, self.content, self.gone = sp, bytearray(SIZE), set()

    def read(self, address, size):
        if not BASE <= address <= address + size <= BASE + SIZE or any(
                page in self.gone for page in range(address >> 12, (address + size + 4095) >> 12)):
            raise MemoryAccessError(f"{address:#x} is not mapped")
        return bytes(self.content[address - BASE : address - BASE + size])

    def store(self, address, value):
        self.content[address - BASE : address - BASE + 8] = value.to_bytes(8, "little")


def test_only_changed_words_are_reported():
    memory = Memory(BASE + 0x2000)
    words = StackWords(memory, 0)
    assert set(words.changed()) == set(range(memory.sp - BEYOND, memory.sp + ABOVE, 8))
    assert words.changed() == {}
    memory.store(memory.sp - 8, 7)
    memory.store(memory.sp - 16, 0)
    assert words.changed() == {memory.sp - 8: 7} and words.changed() == {}


def test_a_stack_that_grows_far_down_is_followed():
    memory = Memory(BASE + 0x2F00)
    words = StackWords(memory, 0)
    words.changed()
    memory.sp -= BEYOND + 64
    assert set(words.changed()) == set(range(memory.sp - BEYOND, memory.sp + 64, 8))
    memory.store(memory.sp, 9)
    memory.store(memory.sp + BEYOND + 64, 8)
    assert words.changed() == {memory.sp: 9, memory.sp + BEYOND + 64: 8}


def test_unmapped_pages_are_skipped():
    memory = Memory(BASE + 0x1010)
    memory.gone.add(BASE >> 12)
    words = StackWords(memory, 0)
    assert set(words.changed()) == set(range(BASE + 0x1000, memory.sp + ABOVE, 8))
    memory.gone.add((BASE >> 12) + 1)
    assert words.changed() == {}


def test_the_number_of_tracked_stacks_is_limited():
    memory = Memory(BASE + 0x800)
    words = StackWords(memory, 0)
    kept = 0
    for sp in range(BASE + 0x300, BASE + SIZE - 0x100, 0x300):
        memory.sp = sp
        kept += len(words.changed()) > 0
    assert 1 < kept <= 8
