"""Laboratory for riscv64 instructions."""

from collections.abc import Sequence
from typing import Any, ClassVar

import unicorn
import unicorn.riscv_const as uc

from emu.riscv64 import registers
from emu.riscv64.arch import Riscv64
from kinst.verify.laboratory.architecture import LaboratoryArch

FS_DIRTY = 3 << 13


class Riscv64Laboratory(LaboratoryArch):
    """riscv64-specific part of the laboratory."""

    arch = Riscv64()
    uc_arch, uc_mode = unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64
    cpu_model = uc.UC_CPU_RISCV64_SIFIVE_U54
    general: ClassVar[dict[str, int]] = {
        name: registers.UNICORN[name] for name in registers.NAMES if name != "zero"
    }
    pc = uc.UC_RISCV_REG_PC
    flags: ClassVar[tuple[str, int]] = ("", 0)
    vectors: ClassVar[Sequence[tuple[int, int]]] = tuple(
        (uc.UC_RISCV_REG_F0 + i, 64) for i in range(8)
    )
    unknown: ClassVar[frozenset[str]] = frozenset({"exception 2"})
    trap_pc_offset: ClassVar[int] = 4

    def prepare(self, engine: Any) -> None:
        status = engine.reg_read(uc.UC_RISCV_REG_MSTATUS)
        engine.reg_write(uc.UC_RISCV_REG_MSTATUS, status | FS_DIRTY)

    def not_executed(self, code: bytes) -> str | None:
        if int.from_bytes(code[:2], "little") & 0xE003 == 0x8000:
            return "the CPU model executes Zcb instructions as no-ops"
        return None


LABORATORY = Riscv64Laboratory
