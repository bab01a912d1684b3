"""The guest trap path of each architecture."""

from kinst.amd64.trap import Amd64Trap
from kinst.arm64.trap import Arm64Trap
from kinst.riscv64.trap import Riscv64Trap
from kinst.trap import GuestTrap

TRAPS: dict[str, GuestTrap] = {
    "amd64": Amd64Trap(), "arm64": Arm64Trap(), "riscv64": Riscv64Trap(),
}
