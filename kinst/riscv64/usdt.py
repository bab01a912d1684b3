"""Instructions that stand for a program's own probes on riscv64.

The header's macros pass 0 to a function that asks for a probe, in the register of its result.
"""

from kinst.code.usdt_code import UsdtCode

NOP, RET = bytes.fromhex("13000000"), bytes.fromhex("67800000")
# AUIPC ra and JALR ra,(ra); AUIPC of another register and JALR zero,(register)
CALL = bytes.fromhex("97000000e7800000"), bytes.fromhex("ff0f0000ffff0f00")
JUMP = bytes.fromhex("1700000067000000"), bytes.fromhex("7f000000ff7f0000")

CODE = UsdtCode(
    relocations=frozenset({18, 19}),  # R_RISCV_CALL, R_RISCV_CALL_PLT
    done=0, before=0, call=CALL, jump=JUMP, fires=2 * NOP, fires_last=NOP + RET, asks=2 * NOP,
    asks_last=NOP + RET, asks_at=0, nothing=(NOP, RET),
    difference=(36, 40),  # R_RISCV_ADD64, R_RISCV_SUB64
    moves=True, narrow=True)
