"""FreeBSD's own provider modules in a booted machine.

Functions of a module are called in the guest, and the probes that they create are read back through
the module's own types.

Behavior: sys/cddl/dev/kinst of FreeBSD 15.0 (kinst_make_probe, kinst_patch_tracepoint, the table
of probes indexed by the low bits of their addresses).
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

PROBES = 0x8000  # number of chains in the table of probes
MAX_CHAIN = 1 << 16
EVERY = -1  # value of kpd_off that selects all instructions
MODULE = "kinst.ko"
NAMES, MAX_NAME = 1 << 20, 128  # size of the memory for names; maximum size of a name (bytes)
FRAME = 4096  # number of bytes below the stack pointer that are reserved for the arguments


@dataclass(frozen=True)
class MadeProbe:
    """Probe that the module has created.

    :param address: address of the instruction.
    :param place: address of the module's structure for the probe, ``struct kinst_probe``.
    :param data: bytes of this structure.
    """

    address: int
    place: int
    data: bytes


class ProviderModule(ABC):
    """FreeBSD provider module in a booted machine.

    :cvar file: file name of the module.
    :cvar maker: name of the function that makes a function's probes.
    :cvar patcher: name of the function that writes a breakpoint.
    :cvar value: member of a probe with the breakpoint's bytes.
    :raises KinstError: if the module is not loaded, or its types are unknown.
    """

    file: ClassVar[str]
    maker: ClassVar[str]
    patcher: ClassVar[str]
    value: ClassVar[str]
    probe: Layout

    def __init__(self, machine: UnicornMachine, types: Types) -> None:
        self.machine, self.types = machine, types
        if not any(module.name == self.file for module in machine.image.modules):
            raise KinstError(f"{self.file} is not loaded: load it with --module {self.file}")
        self._symbol = Layout(types, "linker_symval_t")
        self._make, self._patch = self.function(self.maker), self.function(self.patcher)
        self._kernel = machine.read_u64(machine.symbol("linker_kernel_file").address)
        self._names = self._name_at = 0
        self._named(b"")  # allocate the memory for names before any snapshot is taken

    def initialized(self, table: str) -> int:
        """Check that the module has been initialized, and return the address of its probe table.

        :param table: name of the pointer to the table.
        :raises KinstError: if the module has not been initialized.
        """
        address = self.machine.read_u64(self.machine.symbol(table).address)
        if not address:
            raise KinstError(f"the kernel did not initialize {self.file}: see its boot messages "
                             "(kinst boot)")
        return address

    def holds(self, address: int) -> bool:
        """Return whether an address is in the module's code."""
        module = self.machine.image.module_at(address)
        return module is not None and module.name == self.file

    def function(self, name: str) -> int:
        """Return the address of a function of the module.

        :raises KinstError: if the module does not contain it.
        """
        for symbol in self.machine.image.symbols.named(name):
            if symbol.module == self.file:
                return symbol.address
        raise KinstError(f"{self.file} has no function '{name}': this version is not supported")

    @abstractmethod
    def asked(self, name: bytes) -> bytes:
        """Return the bytes that the last argument of the function ``maker`` points to."""

    @abstractmethod
    def around(self, prologue: bytes, returns: bytes, code: bytes, is_prologue: bool
               ) -> tuple[bytes, bytes]:
        """Return the code required before and after an instruction for the module to accept it."""

    @abstractmethod
    def probes(self, begin: int, end: int) -> dict[int, MadeProbe]:
        """Return the module's probes on instructions in [begin, end), keyed by address."""

    def make(self, name: str, address: int, size: int) -> int:
        """Have the module create the probes of a function, as DTrace requests them.

        :return: error number of the module; 0 on success.
        :raises CallError: if the module panics or does not return.
        """
        caller = Caller(self.machine)
        with caller.passing():
            arguments = self._arguments(caller, name, address, size)
            return caller.call(self._make, arguments, self.maker) & 0xFFFFFFFF

    def enter(self, name: str, address: int, size: int) -> int:
        """Prepare the call of ``make`` without running the call, for single-stepping.

        :return: return address of the call.
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
        """Write a name to persistent guest memory: the module keeps and compares the pointer."""
        if not self._names:
            self._names = Caller(self.machine).call(
                self.machine.symbol("kmem_malloc").address, [NAMES, M_WAITOK_ZERO], "kmem_malloc")
            if not self._names:
                raise KinstError("the guest cannot allocate memory for the names that are passed "
                                 "to the module")
        if self._name_at + len(text) + 1 > NAMES:
            self._name_at = 0  # start over: the restored guest no longer uses the first names
        address = self._names + self._name_at
        self.machine.write(address, text + b"\0")
        self._name_at += len(text) + 1
        return address

    def _arguments(self, caller: Caller, name: str, address: int, size: int) -> list[int]:
        text = name.encode()[: MAX_NAME - 1]
        symbol = caller.place(self._symbol.build(
            {"name": self._named(text), "value": address, "size": size}))
        return [self._kernel, 0, symbol, caller.place(self.asked(text))]

    def enable(self, probe: MadeProbe) -> None:
        """Have the module write a probe's breakpoint."""
        value = self.probe.get(probe.data, self.value)
        caller = Caller(self.machine)
        caller.call(self._patch, [probe.place, value], self.patcher)
        self.machine.engine.remove_translations(probe.address, probe.address + 16)


class KinstModule(ProviderModule):
    """FreeBSD's provider kinst.ko in a booted machine.

    :raises KinstError: if the module is not loaded, or its types are unknown.
    """

    file = MODULE
    maker = "kinst_make_probe"
    patcher = "kinst_patch_tracepoint"
    value = "kp_patchval"

    def __init__(self, machine: UnicornMachine, types: Types) -> None:
        super().__init__(machine, types)
        self.probe = Layout(types, "struct kinst_probe")
        self._description = Layout(types, "dtrace_kinst_probedesc_t")
        self._table = self.initialized("kinst_probetab")

    def asked(self, name: bytes) -> bytes:
        """Return a probe description that selects every instruction of a function."""
        return self._description.build({"kpd_func": name, "kpd_mod": b"kernel", "kpd_off": EVERY})

    def around(self, prologue: bytes, returns: bytes, code: bytes, is_prologue: bool
               ) -> tuple[bytes, bytes]:
        """Return a prologue to precede the instruction, so that both look like a function."""
        return prologue, b""

    def probes(self, begin: int, end: int) -> dict[int, MadeProbe]:
        """Return the module's probes on instructions in [begin, end), keyed by address."""
        machine, probes = self.machine, dict[int, MadeProbe]()
        next_offset, size = self.probe.place("kp_hashnext.le_next")[0], self.probe.size
        patch_offset, _size = self.probe.place("kp_patchpoint")
        heads = self._heads(begin, end)
        for place in heads:
            for _ in range(MAX_CHAIN):
                if not place:
                    break
                data = machine.read(place, size)
                address = int.from_bytes(data[patch_offset : patch_offset + 8], "little")
                if begin <= address < end and address not in probes:
                    probes[address] = MadeProbe(address, place, data)
                place = int.from_bytes(data[next_offset : next_offset + 8], "little")
        return dict(sorted(probes.items()))

    def _heads(self, begin: int, end: int) -> list[int]:
        """Return the first probes of the chains for addresses in [begin, end)."""
        first, count = begin % PROBES, min(end - begin, PROBES)
        raw = self.machine.read(self._table + 8 * first, 8 * min(count, PROBES - first))
        if first + count > PROBES:
            raw += self.machine.read(self._table, 8 * (first + count - PROBES))
        return [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8)]
