"""What is known of the CPU models of each architecture."""

from kinst.amd64 import model as amd64
from kinst.arm64 import model as arm64
from kinst.difference import Model
from kinst.riscv64 import model as riscv64

MODELS: dict[str, Model] = {
    "amd64": amd64.MODEL, "arm64": arm64.MODEL, "riscv64": riscv64.MODEL,
}
