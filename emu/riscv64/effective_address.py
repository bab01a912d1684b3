"""The address a load or store uses: Unicorn does not report it in stval.

Encodings: unprivileged manual, "RV32/64G Instruction Set Listings" and "C Extension".
"""

from collections.abc import Callable


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def effective_address(code: int, register: Callable[[int], int]) -> int | None:
    """Address of the load, store or atomic ``code`` (32 bits; the low 16 of a compressed one).

    :param register: gives x0..x31.
    :return: None when it accesses no memory.
    """
    if code & 3 == 3:
        opcode = code & 0x7F
        base = code >> 15 & 31
        if opcode in (0x03, 0x07):  # LOAD, LOAD-FP
            offset = _signed(code >> 20, 12)
        elif opcode in (0x23, 0x27):  # STORE, STORE-FP
            offset = _signed((code >> 25) << 5 | code >> 7 & 31, 12)
        elif opcode == 0x2F:  # AMO
            offset = 0
        else:
            return None
    else:
        quadrant, kind = code & 3, code >> 13 & 7

        def bits(*places: tuple[int, int]) -> int:
            return sum((code >> at & 1) << to for at, to in places)

        if quadrant == 0 and kind in (1, 3, 5, 7):  # c.fld c.ld c.fsd c.sd
            base = 8 + (code >> 7 & 7)
            offset = (code >> 10 & 7) << 3 | (code >> 5 & 3) << 6
        elif quadrant == 0 and kind in (2, 6):  # c.lw c.sw
            base = 8 + (code >> 7 & 7)
            offset = (code >> 10 & 7) << 3 | bits((6, 2), (5, 6))
        elif quadrant == 2 and kind in (1, 3):  # c.fldsp c.ldsp
            base = 2
            offset = (code >> 5 & 3) << 3 | bits((12, 5)) | (code >> 2 & 7) << 6
        elif quadrant == 2 and kind == 2:  # c.lwsp
            base = 2
            offset = (code >> 4 & 7) << 2 | bits((12, 5)) | (code >> 2 & 3) << 6
        elif quadrant == 2 and kind in (5, 7):  # c.fsdsp c.sdsp
            base = 2
            offset = (code >> 10 & 7) << 3 | (code >> 7 & 7) << 6
        elif quadrant == 2 and kind == 6:  # c.swsp
            base = 2
            offset = (code >> 9 & 15) << 2 | (code >> 7 & 3) << 6
        else:
            return None
    return register(base) + offset & (1 << 64) - 1
