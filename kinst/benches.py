"""The laboratory bench of each architecture."""

from kinst.amd64.bench import Amd64Bench
from kinst.arm64.bench import Arm64Bench
from kinst.laboratory import Bench
from kinst.riscv64.bench import Riscv64Bench

BENCHES: dict[str, type[Bench]] = {
    "amd64": Amd64Bench, "arm64": Arm64Bench, "riscv64": Riscv64Bench,
}
