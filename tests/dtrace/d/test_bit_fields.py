"""How a bit-field of the kernel's is read: by the fewest aligned bytes that hold all of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.d.code import window
from dtrace.d.errors import DError, SourcePlace

HERE = SourcePlace(1)


@given(st.integers(0, 4096), st.integers(1, 64), st.binary(min_size=600, max_size=600))
def test_the_bits_that_are_read_are_the_fields(offset, bits, memory):
    wanted = int.from_bytes(memory, "little") >> offset & ((1 << bits) - 1)
    if offset % 64 + bits > 64:
        with pytest.raises(DError, match="cannot be read"):
            window(offset, bits, HERE)
        return
    start, size, low = window(offset, bits, HERE)
    read = int.from_bytes(memory[start : start + size], "little")
    assert start % size == 0 and read >> low & ((1 << bits) - 1) == wanted


def test_two_fields_of_one_byte_are_told_from_each_other():
    assert window(0, 4, HERE) == (0, 1, 0) and window(4, 4, HERE) == (0, 1, 4)
    assert window(12, 6, HERE) == (0, 4, 12) and window(100, 4, HERE) == (12, 1, 4)
