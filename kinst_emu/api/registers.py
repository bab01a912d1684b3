"""General registers, accessed by the names that the architecture's manual uses."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

from emu.host.errors import KinstError
from emu.machine.machine import Machine
from kinst_emu.api.turn import Turn, in_turn

MASK = (1 << 64) - 1


class Registers(Mapping[str, int]):
    """Read-only general registers, accessed by name."""

    def __init__(self, names: Sequence[str], read: Callable[[str], int]) -> None:
        self._names, self._read = names, read

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(f"no register '{name}': use one of {', '.join(self._names)}")
        return name

    def __getitem__(self, name: str) -> int:
        return self._read(self._known(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return "\n".join(f"{name:>8} {self[name]:#018x}" for name in self)


class MachineRegisters(Registers, MutableMapping[str, int]):
    """General registers of a stopped machine, readable and writable by name."""

    def __init__(self, machine: Machine, turn: Turn) -> None:
        super().__init__(tuple(machine.arch.registers), self._read_one)
        self._machine, self.turn = machine, turn

    @in_turn
    def _read_one(self, name: str) -> int:
        return self._machine.read_register(name)

    @in_turn
    def __setitem__(self, name: str, value: int) -> None:
        if self._machine.running:
            raise KinstError("the machine is running: a probe's callback cannot change it")
        self._machine.write_register(self._known(name), value & MASK)

    def __delitem__(self, name: str) -> None:
        raise TypeError("registers cannot be deleted")
