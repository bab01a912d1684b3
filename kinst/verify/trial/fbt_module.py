"""FreeBSD's own FBT, as a machine runs it (sys/cddl/dev/fbt of FreeBSD 15.0): the table of probes
is indexed by 16 bytes of address, and a return knows its offset."""

from dwarf.types import Types
from emu.unicorn.machine import UnicornMachine
from kinst.verify.trial.layout import Layout
from kinst.verify.trial.provider_module import MAX_CHAIN, MadeProbe, ProviderModule

SHIFT = 4  # FBT_ADDR2NDX


class FbtModule(ProviderModule):
    """:raises KinstError: when it is not loaded, or its types are not known."""

    file = "fbt.ko"
    maker = "fbt_provide_module_function"
    patcher = "fbt_patch_tracepoint"
    value = "fbtp_patchval"

    def __init__(self, machine: UnicornMachine, types: Types) -> None:
        super().__init__(machine, types)
        self.probe = Layout(types, "fbt_probe_t")
        self._table = self.initialised("fbt_probetab")
        mask = machine.symbol("fbt_probetab_mask").address
        self._mask = int.from_bytes(machine.read(mask, 4), "little")

    def asked(self, name: bytes) -> bytes:
        """The linker file's name."""
        return b"kernel\0"

    def around(self, prologue: bytes, returns: bytes, code: bytes, is_prologue: bool
               ) -> tuple[bytes, bytes]:
        """An entry begins a function, a return ends one."""
        return (b"", returns) if is_prologue else (prologue, b"")

    def probes(self, begin: int, end: int) -> dict[int, MadeProbe]:
        machine, found = self.machine, dict[int, MadeProbe]()
        at_next, _size = self.probe.place("fbtp_hashnext")
        at_patch, _size = self.probe.place("fbtp_patchpoint")
        indices = {number & self._mask for number in range(begin >> SHIFT, (end >> SHIFT) + 1)}
        for index in indices:
            place = machine.read_u64(self._table + 8 * index)
            for _ in range(MAX_CHAIN):
                if not place:
                    break
                data = machine.read(place, self.probe.size)
                address = int.from_bytes(data[at_patch : at_patch + 8], "little")
                if begin <= address < end:
                    found.setdefault(address, MadeProbe(address, place, data))
                place = int.from_bytes(data[at_next : at_next + 8], "little")
        return dict(sorted(found.items()))

    def is_return(self, probe: MadeProbe) -> bool:
        return self.probe.get(probe.data, "fbtp_roffset") != 0
