"""Relocator that makes the same mistakes as kinst in FreeBSD 15.0 (docs/upstream.md).

It implements the protocol of ``kinst trial --relocator``, so that the tests can find the mistakes
without a kernel.  The mistakes follow FreeBSD's code instruction by instruction; everything else
comes from our own tables.
"""

import json
import struct
import sys

from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Copy, Refuse, Rewrite

MASK = (1 << 64) - 1
NAMES = "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split()
EBREAK, BRK = bytes.fromhex("73001000"), bytes.fromhex("a08142d4")


def request():
    """Read the next request; exit at the end of the input."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def answer(row):
    """Write an answer as one line of JSON."""
    print(json.dumps(row), flush=True)


class State:
    """Registers and memory that an emulation reads and changes."""
    def __init__(self, registers):
        self.registers, self.changed, self.stores = registers, {}, []

    def get(self, name):
        """Return the value of a register."""
        return 0 if name in ("xzr", "zero") else self.changed.get(name, self.registers[name])

    def set(self, name, value):
        """Set a register; ignore writes to a zero register."""
        if name not in ("xzr", "zero"):
            self.changed[name] = value & MASK

    def load(self, address, size):
        """Request an integer of ``size`` bytes from memory."""
        answer({"load": address, "size": size})
        return int.from_bytes(bytes.fromhex(request()["bytes"]), "little")

    def store(self, address, size, value):
        """Record a store of an integer."""
        self.stores.append((address, (value & (1 << 8 * size) - 1).to_bytes(size, "little").hex()))


def amd64_call(code, state, after):
    """Return the target of an indirect call, wrongly treating SIB index 4 as a register."""
    at = 1 if code[0] & 0xF0 == 0x40 else 0
    rex = code[0] if at else 0
    modrm = code[at + 1]
    mod, rm = modrm >> 6, modrm & 7
    if mod == 3:
        return state.get(NAMES[rm | (rex & 1) << 3])
    one, two, scale, disp = rm | (rex & 1) << 3, None, 0, 0
    place = at + 2
    if rm == 4:
        sib = code[at + 2]
        one = (sib & 7 | (rex & 1) << 3) if sib & 7 != 5 else None
        two, scale, place = sib >> 3 & 7 | (rex & 2) << 2, sib >> 6, at + 3
    if mod == 1:
        disp = struct.unpack_from("<b", code, place)[0]
    elif mod == 2:
        disp = struct.unpack_from("<i", code, place)[0]
    address = (state.get(NAMES[one]) if one is not None else 0) + disp
    address += (state.get(NAMES[two]) << scale) if two is not None else 0
    return state.load(address & MASK, 8)


def bit(value):
    """Return ``1 << value`` as a C int, sign-extended to 64 bits."""
    shifted = 1 << (value & 31)
    return shifted - (1 << 32) & MASK if shifted >> 31 else shifted


def arm64(code, state, address):
    """Return the next PC of TBZ, TBNZ, CBZ or CBNZ as FreeBSD computes it."""
    word = int.from_bytes(code, "little")
    register = f"x{word & 31}"
    if word >> 25 & 0x3F == 0b011011:  # tbz, tbnz
        offset = (word >> 5 & 0x3FFF ^ 0x2000) - 0x2000
        number = word >> 19 & 31 | word >> 31 << 5
        taken = bool(state.get(register) & bit(number)) == bool(word >> 24 & 1)
    else:  # cbz and cbnz test the whole register even in their W forms
        offset = (word >> 5 & 0x7FFFF ^ 0x40000) - 0x40000
        taken = bool(state.get(register)) == bool(word >> 24 & 1)
    return address + 4 * offset if taken else address + 4


def wrong_way(arch, code):
    """Return the kind of mistake that FreeBSD makes with an instruction, or None."""
    word = int.from_bytes(code[:4], "little")
    if arch == "amd64":
        at = 1 if code[0] & 0xF0 == 0x40 else 0
        if code[at] == 0xFF and code[at + 1] >> 3 & 7 == 2 and code[at + 1] >> 6 != 3 and (
                code[at + 1] & 0xC7 != 5):
            return "call"
        return "copy" if code[0] in (0xE0, 0xE1, 0xE2) else None
    if arch == "arm64":
        if word >> 25 & 0x3F in (0b011011, 0b011010):
            return "branch"
        return "copy" if word & 0x3B000000 == 0x18000000 else None
    return "odd" if len(code) == 2 and word & 0xF07F == 0x9002 and word >> 7 & 31 else None


def main():
    """Answer requests until the input ends."""
    asked = {}
    while True:
        row = request()
        code = bytes.fromhex(row.get("bytes") or asked["bytes"])
        if "state" not in row:
            asked = row
        arch, address = asked["architecture"], asked["address"]
        trap, way = TRAPS[arch], wrong_way(arch, code)
        _length, verdict = trap.instructions.classify(code, address)
        after = address + len(code)
        if "state" in row:
            state = State(row["state"])
            if way == "call":
                pc = amd64_call(code, state, after)
                sp = state.get("rsp") - 8 & MASK
                state.set("rsp", sp)
                state.store(sp, 8, after)
            elif way == "branch":
                pc = arm64(code, state, address)
            elif way == "odd":
                name = "zero ra sp gp tp t0 t1 t2 s0 s1 a0 a1 a2 a3 a4 a5 a6 a7".split()
                pc = state.get(name[int.from_bytes(code, "little") >> 7 & 31])
                state.set("ra", after)
            else:
                pc = verdict.next_pc(state)
            answer({"pc": pc & MASK, "registers": state.changed, "stores": state.stores})
        elif isinstance(verdict, Refuse):
            answer({"id": row["id"], "refuse": verdict.reason})
        elif way == "copy" or (way is None and isinstance(verdict, Copy | Rewrite)):
            made = Copy() if way == "copy" else verdict
            body, end = trap.trampoline(row["trampoline"], code, made, after)
            answer({"id": row["id"], "bytes": body.hex(),
                    **({"back": end} if trap.second_breakpoint else {})})
        else:
            answer({"id": row["id"], "emulate": True})


if __name__ == "__main__":
    main()
