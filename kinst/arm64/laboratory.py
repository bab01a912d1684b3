"""Laboratory for arm64 instructions."""

from collections.abc import Sequence
from typing import Any, ClassVar

import unicorn
import unicorn.arm64_const as uc

from emu.arm64 import registers
from emu.arm64.arch import Arm64
from kinst.verify.laboratory.architecture import LaboratoryArch


class Arm64Laboratory(LaboratoryArch):
    """arm64-specific part of the laboratory."""

    arch = Arm64()
    uc_arch, uc_mode = unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM
    cpu_model = uc.UC_CPU_ARM64_A57
    fixed: ClassVar[int] = 4
    general: ClassVar[dict[str, int]] = {
        name: registers.UNICORN[name] for name in [*(f"x{i}" for i in range(31)), "sp"]
    } | {"pstate": uc.UC_ARM64_REG_NZCV}
    pc = uc.UC_ARM64_REG_PC
    flags: ClassVar[tuple[str, int]] = ("pstate", 0xF0000000)
    vectors: ClassVar[Sequence[tuple[int, int]]] = tuple(
        (uc.UC_ARM64_REG_Q0 + i, 128) for i in range(8)
    )
    unknown: ClassVar[frozenset[str]] = frozenset({"invalid instruction", "exception 1"})

    def prepare(self, engine: Any) -> None:
        cpacr = registers.SYSTEM["cpacr_el1"]
        op0, op1, crn, crm, op2 = cpacr
        engine.reg_write(uc.UC_ARM64_REG_CP_REG, (crn, crm, op0, op1, op2, 3 << 20))

    def not_executed(self, code: bytes) -> str | None:
        word = int.from_bytes(code, "little")
        if word & ~0xFE0 == 0xD503201F:  # HINT
            return "it is a hint to the CPU"
        if word >> 22 == 0x354:  # SYS, MRS, MSR, barriers and CLREX
            return ("it is a barrier or CLREX" if word & ~0xFE0 == 0xD503301F else
                    "it accesses a system register")
        return None


LABORATORY = Arm64Laboratory
