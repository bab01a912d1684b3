"""The known differences of CPU models, per architecture."""

from kinst.amd64 import model as amd64
from kinst.arm64 import model as arm64
from kinst.difference import Difference
from kinst.riscv64 import model as riscv64

DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "amd64": amd64.DIFFERENCES, "arm64": arm64.DIFFERENCES, "riscv64": riscv64.DIFFERENCES,
}
# Fields of the trap frame: bits that may differ, and why.
FRAME_MASKS: dict[str, dict[str, tuple[int, str]]] = {
    "amd64": amd64.FRAME_MASKS, "arm64": arm64.FRAME_MASKS, "riscv64": riscv64.FRAME_MASKS,
}
