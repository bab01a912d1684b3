"""Instructions that stand for a program's own probes on amd64."""

from kinst.code.usdt_code import UsdtCode

NOP, RET = b"\x90", b"\xc3"
CLEAR = bytes.fromhex("4833c0")  # xor %rax,%rax

CODE = UsdtCode(
    relocations=frozenset({2, 4}),  # R_X86_64_PC32, R_X86_64_PLT32
    done=0, before=1, call=(b"\xe8", b"\xff"), jump=(b"\xe9", b"\xff"),
    fires=5 * NOP, fires_last=RET + 4 * NOP, asks=CLEAR + 2 * NOP, asks_last=CLEAR + RET + NOP,
    asks_at=3, nothing=(NOP, RET), difference=(24,),  # R_X86_64_PC64
    moves=False, narrow=False)
