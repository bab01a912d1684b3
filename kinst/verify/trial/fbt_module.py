"""FreeBSD's fbt.ko in a booted machine (sys/cddl/dev/fbt of FreeBSD 15.0).

The table of probes is indexed by units of 16 bytes of address.  A return probe has an offset.
"""

from dwarf.types import Types
from emu.unicorn.machine import UnicornMachine
from kinst.verify.trial.layout import Layout
from kinst.verify.trial.provider_module import MAX_CHAIN, MadeProbe, ProviderModule

SHIFT = 4  # FBT_ADDR2NDX


class FbtModule(ProviderModule):
    """FreeBSD's provider fbt.ko in a booted machine.

    :raises KinstError: if the module is not loaded, or its types are unknown.
    """

    file = "fbt.ko"
    maker = "fbt_provide_module_function"
    patcher = "fbt_patch_tracepoint"
    value = "fbtp_patchval"

    def __init__(self, machine: UnicornMachine, types: Types) -> None:
        super().__init__(machine, types)
        self.probe = Layout(types, "fbt_probe_t")
        self._table = self.initialized("fbt_probetab")
        mask = machine.symbol("fbt_probetab_mask").address
        self._mask = int.from_bytes(machine.read(mask, 4), "little")

    def asked(self, name: bytes) -> bytes:
        """Return the name of the linker file that contains the function."""
        return b"kernel\0"

    def around(self, prologue: bytes, returns: bytes, code: bytes, is_prologue: bool
               ) -> tuple[bytes, bytes]:
        """Return the code that makes an instruction the entry or the return of a function."""
        return (b"", returns) if is_prologue else (prologue, b"")

    def probes(self, begin: int, end: int) -> dict[int, MadeProbe]:
        """Return the module's probes on instructions in [begin, end), keyed by address."""
        machine, probes = self.machine, dict[int, MadeProbe]()
        next_offset, _size = self.probe.place("fbtp_hashnext")
        patch_offset, _size = self.probe.place("fbtp_patchpoint")
        indices = {number & self._mask for number in range(begin >> SHIFT, (end >> SHIFT) + 1)}
        for index in indices:
            place = machine.read_u64(self._table + 8 * index)
            for _ in range(MAX_CHAIN):
                if not place:
                    break
                data = machine.read(place, self.probe.size)
                address = int.from_bytes(data[patch_offset : patch_offset + 8], "little")
                if begin <= address < end:
                    probes.setdefault(address, MadeProbe(address, place, data))
                place = int.from_bytes(data[next_offset : next_offset + 8], "little")
        return dict(sorted(probes.items()))

    def is_return(self, probe: MadeProbe) -> bool:
        """Return whether a probe is on a return rather than on an entry."""
        return self.probe.get(probe.data, "fbtp_roffset") != 0
