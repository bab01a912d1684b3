"""Tests of the range of bytes that D code reads to get a kernel bit-field.

The window is the smallest aligned word that contains the whole field, or eight or nine bytes.
"""

from hypothesis import given
from hypothesis import strategies as st

from dtrace.d.compile.code import window


@given(st.integers(0, 4096), st.integers(1, 64), st.binary(min_size=600, max_size=600))
def test_the_bytes_that_are_read_contain_the_whole_bit_field(offset, bits, memory):
    wanted = int.from_bytes(memory, "little") >> offset & ((1 << bits) - 1)
    start, size, low = window(offset, bits)
    read = int.from_bytes(memory[start : start + size], "little")
    assert read >> low & ((1 << bits) - 1) == wanted
    if offset % 64 + bits <= 64:
        assert start % size == 0
    else:
        assert size == (9 if offset % 8 + bits > 64 else 8)


def test_two_bit_fields_in_one_byte_are_read_separately():
    assert window(0, 4) == (0, 1, 0) and window(4, 4) == (0, 1, 4)
    assert window(12, 6) == (0, 4, 12) and window(100, 4) == (12, 1, 4)
