"""FreeBSD's own providers, as a machine runs them: their functions are called in the guest, and
what they make is read back by their own types.

Behaviour: sys/cddl/dev/kinst of FreeBSD 15.0 (kinst_make_probe, kinst_patch_tracepoint, the table
of probes by the low bits of their addresses).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from dwarf.types import Types
from emu.guests.freebsd.kernel import M_WAITOK_ZERO
from emu.host.errors import KinstError
from emu.machine.call import Caller
from emu.unicorn.machine import UnicornMachine
from kinst.verify.trial.layout import Layout

PROBES = 0x8000  # chains in the table of probes, by an address's low bits
MAX_CHAIN = 1 << 16
EVERY = -1  # kpd_off: all instructions
MODULE = "kinst.ko"
NAMES, MAX_NAME = 1 << 20, 128  # bytes of all names, and of one
FRAME = 4096  # bytes below the stack pointer, where the arguments are placed


@dataclass(frozen=True)
class MadeProbe:
    """A probe that the module has made.

    :param address: of the instruction.
    :param place: of its ``struct kinst_probe``, and the bytes there.
    """

    address: int
    place: int
    data: bytes


class ProviderModule(ABC):
    """A provider of FreeBSD's in a booted machine.

    :cvar file: the module's file; ``maker`` its function that makes a function's probes,
        ``patcher`` the one that writes a breakpoint, ``value`` the member that says what.
    :raises KinstError: when it is not loaded, or its types are not known.
    """

    file: ClassVar[str]
    maker: ClassVar[str]
    patcher: ClassVar[str]
    value: ClassVar[str]
    probe: Layout

    def __init__(self, machine: UnicornMachine, types: Types) -> None:
        self.machine, self.types = machine, types
        if not any(module.name == self.file for module in machine.image.modules):
            raise KinstError(f"{self.file} is not loaded: give --module {self.file}")
        self._symbol = Layout(types, "linker_symval_t")
        self._make, self._patch = self.function(self.maker), self.function(self.patcher)
        self._kernel = machine.read_u64(machine.symbol("linker_kernel_file").address)
        self._names = self._name_at = 0
        self._named(b"")  # before any snapshot is taken

    def initialised(self, table: str) -> int:
        """Where the module's table of probes is.

        :raises KinstError: when there is none.
        """
        found = self.machine.read_u64(self.machine.symbol(table).address)
        if not found:
            raise KinstError(f"{self.file} was not initialised by the kernel: see what it said "
                             "when it booted (kinst boot)")
        return found

    def holds(self, address: int) -> bool:
        """Whether an address is in the module's code."""
        module = self.machine.image.module_at(address)
        return module is not None and module.name == self.file

    def function(self, name: str) -> int:
        for symbol in self.machine.image.symbols.named(name):
            if symbol.module == self.file:
                return symbol.address
        raise KinstError(f"{self.file} has no function '{name}': it is of another version")

    @abstractmethod
    def asked(self, name: bytes) -> bytes:
        """What the maker is given beside the function, to be placed in memory."""

    @abstractmethod
    def around(self, prologue: bytes, returns: bytes, code: bytes, is_prologue: bool
               ) -> tuple[bytes, bytes]:
        """What has to stand before and behind an instruction, for the module to take it."""

    @abstractmethod
    def probes(self, begin: int, end: int) -> dict[int, MadeProbe]:
        """Its probes on the instructions in [begin, end), by address."""

    def make(self, name: str, address: int, size: int) -> int:
        """Let it make the probes of a function, as DTrace asks it to.

        :return: its error number; 0: none.
        :raises CallError: when it panics or does not return.
        """
        caller = Caller(self.machine)
        with caller.passing():
            arguments = self._arguments(caller, name, address, size)
            return caller.call(self._make, arguments, self.maker) & 0xFFFFFFFF

    def enter(self, name: str, address: int, size: int) -> int:
        """As ``make``, but only to where it begins: the machine can be stepped from there.

        :return: the address that it returns to.
        """
        machine = self.machine
        caller = Caller(machine)
        arguments = self._arguments(caller, name, address, size)
        back = machine.guest.entry_address(machine.image)
        machine.write_register(machine.arch.sp, machine.sp - FRAME)
        machine.arch.prepare_call(machine, tuple(arguments), back)
        machine.pc = self._make
        return back

    def _named(self, text: bytes) -> int:
        """A name in the guest's memory: the module keeps the pointer, and compares by it."""
        if not self._names:
            self._names = Caller(self.machine).call(
                self.machine.symbol("kmem_malloc").address, [NAMES, M_WAITOK_ZERO], "kmem_malloc")
            if not self._names:
                raise KinstError("the guest has no memory for the trial's names")
        if self._name_at + len(text) + 1 > NAMES:
            self._name_at = 0  # those of long ago: the guest's memory was put back since
        at = self._names + self._name_at
        self.machine.write(at, text + b"\0")
        self._name_at += len(text) + 1
        return at

    def _arguments(self, caller: Caller, name: str, address: int, size: int) -> list[int]:
        text = name.encode()[: MAX_NAME - 1]
        symbol = caller.place(self._symbol.build(
            {"name": self._named(text), "value": address, "size": size}))
        return [self._kernel, 0, symbol, caller.place(self.asked(text))]

    def enable(self, probe: MadeProbe) -> None:
        """Let it put its breakpoint over an instruction."""
        value = self.probe.get(probe.data, self.value)
        caller = Caller(self.machine)
        caller.call(self._patch, [probe.place, value], self.patcher)
        self.machine.engine.remove_translations(probe.address, probe.address + 16)


class KinstModule(ProviderModule):
    """:raises KinstError: when it is not loaded, or its types are not known."""

    file = MODULE
    maker = "kinst_make_probe"
    patcher = "kinst_patch_tracepoint"
    value = "kp_patchval"

    def __init__(self, machine: UnicornMachine, types: Types) -> None:
        super().__init__(machine, types)
        self.probe = Layout(types, "struct kinst_probe")
        self._description = Layout(types, "dtrace_kinst_probedesc_t")
        self._table = self.initialised("kinst_probetab")

    def asked(self, name: bytes) -> bytes:
        return self._description.build({"kpd_func": name, "kpd_mod": b"kernel", "kpd_off": EVERY})

    def around(self, prologue: bytes, returns: bytes, code: bytes, is_prologue: bool
               ) -> tuple[bytes, bytes]:
        """A prologue stands before it, so that the module takes it for a function."""
        return prologue, b""

    def probes(self, begin: int, end: int) -> dict[int, MadeProbe]:
        """Its probes on the instructions in [begin, end), by address."""
        machine, found = self.machine, dict[int, MadeProbe]()
        at_next, size = self.probe.place("kp_hashnext.le_next")[0], self.probe.size
        at_patch, _size = self.probe.place("kp_patchpoint")
        heads = self._heads(begin, end)
        for place in heads:
            for _ in range(MAX_CHAIN):
                if not place:
                    break
                data = machine.read(place, size)
                address = int.from_bytes(data[at_patch : at_patch + 8], "little")
                if begin <= address < end and address not in found:
                    found[address] = MadeProbe(address, place, data)
                place = int.from_bytes(data[at_next : at_next + 8], "little")
        return dict(sorted(found.items()))

    def _heads(self, begin: int, end: int) -> list[int]:
        """The chains that a range's addresses are in."""
        first, count = begin % PROBES, min(end - begin, PROBES)
        raw = self.machine.read(self._table + 8 * first, 8 * min(count, PROBES - first))
        if first + count > PROBES:
            raw += self.machine.read(self._table, 8 * (first + count - PROBES))
        return [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8)]
