"""Instructions that stand for a program's own probes on arm64.

The header's macros pass 0 to a function that asks for a probe, in the register of its result.
"""

from kinst.code.usdt_code import UsdtCode

NOP, RET = bytes.fromhex("1f2003d5"), bytes.fromhex("c0035fd6")

CODE = UsdtCode(
    relocations=frozenset({282, 283}),  # R_AARCH64_JUMP26, R_AARCH64_CALL26
    done=0, before=0, call=(bytes.fromhex("00000094"), bytes.fromhex("000000fc")),
    jump=(bytes.fromhex("00000014"), bytes.fromhex("000000fc")),
    fires=NOP, fires_last=RET, asks=NOP, asks_last=RET, asks_at=0, nothing=(NOP, RET),
    difference=(260,),  # R_AARCH64_PREL64
    moves=False, narrow=False)
