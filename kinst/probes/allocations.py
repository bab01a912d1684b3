"""Sites at which a kernel has counted an allocation, and where they have the arguments.

The kernel counts what it allocates and frees in functions that are often inlined.  They then test
whether DTrace traces allocations.  The branch of this test is the site; the debug data, or the code
that passes them to DTrace, says where the function's variables are there.
"""

from dataclasses import dataclass

from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex
from dwarf.linked_types import LinkedTypes
from dwarf.locations import Constant, Location, Place, Register
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.guest.guest import AllocationProbes
from kinst.code.convention import CONVENTIONS
from kinst.code.dataflow import EFFECTS
from kinst.code.listing import ProbedInstruction
from kinst.probes import guards
from kinst.probes.probed_code import ProbedCode, ProbeError
from kinst.relocation.verdict import ConditionalJump, Jump

LONGEST = 24  # maximum number of instructions that prepare the call of DTrace


@dataclass(frozen=True)
class AllocationSite:
    """A branch that the kernel executes after it has counted an allocation.

    :param kind: register with the address of the type of memory.
    :param size: register with the size, or the size itself.
    :param zone: the same for the number of the zone.
    """

    branch: ProbedInstruction
    frees: bool
    kind: str
    size: str | int
    zone: str | int


def sites(code: ProbedCode, probes: AllocationProbes, index: DebugIndex, types: Types
          ) -> list[AllocationSite]:
    """Return the sites of a kernel's allocations.

    :raises ProbeError: if there are none, or the debug data does not say where the arguments are.
    """
    symbols = code.image.symbols
    variable = symbols.find(probes.enabled)
    if variable is None or not isinstance(types, DwarfTypes | LinkedTypes):
        raise ProbeError(f"the kernel has no DWARF, or no '{probes.enabled}'")
    around = {function.address: function for name in probes.frees for one in index.named(name)
              for low, _high in one.pieces
              if (function := symbols.function_at(low)) is not None}
    found = []
    for function in around.values():
        table = code.instructions(function)
        for branch, verdict in guards.tests(code.trap, table, variable.address, code.word):
            counted = next((one for one in index.stack(branch.address)
                            if one.name in probes.frees), None)
            if counted is None:
                continue
            test = _Test(code, function, table, branch, verdict, {
                one.name: one.place for one in types.variables(counted, branch.address, None)})
            kind, size, zone = (0 if name not in test.places else test.value(
                name, probes.passed[name]) for name in (probes.kind, probes.size, probes.zone))
            if isinstance(kind, int):
                raise ProbeError(f"{function.name}: the type of memory is a constant")
            found.append(AllocationSite(branch, probes.frees[counted.name], kind, size, zone))
    if {one.frees for one in found} != set(probes.frees.values()):
        raise ProbeError(f"no code of {' and '.join(probes.frees)} tests '{probes.enabled}'")
    return found


@dataclass(frozen=True)
class _Test:
    """A branch that tests whether allocations are traced.

    :param table: the instructions of the function.
    :param places: variable in scope -> its location, if the debug data has one.
    """

    code: ProbedCode
    function: Symbol
    table: list[ProbedInstruction]
    branch: ProbedInstruction
    verdict: ConditionalJump
    places: dict[str, Place | None]

    def value(self, name: str, argument: int) -> str | int:
        """Return the register or the constant that is a variable's value.

        :param argument: number of the argument in which it is passed to DTrace.
        :raises ProbeError: if it is unknown.
        """
        known = _known(self.code, self.places[name])
        if known is None:
            known = self._passed(CONVENTIONS[self.code.arch.name].registers[argument])
        if known is None:
            offset = self.branch.address - self.function.address
            raise ProbeError(f"{self.function.name}+{offset:#x}: neither the debug data nor the "
                             f"code says where '{name}' is")
        return known

    def _passed(self, argument: str) -> str | None:
        """Return the register whose value the kernel passes to DTrace in a register, or None.

        The code that calls DTrace begins where the branch leads while allocations are traced.  It
        has one other branch, for a type without a probe, to where the first one leads otherwise.
        """
        effect = EFFECTS[self.code.arch.name]
        directions = (self.verdict.target, self.branch.address + len(self.branch.code))
        for start, otherwise in (directions, directions[::-1]):
            sources: dict[str, str | None] = {}  # register -> the register whose value it has now
            left = False
            for one in [i for i in self.table if i.address >= start][:LONGEST]:
                if isinstance(one.verdict, ConditionalJump):
                    if left or one.verdict.target != otherwise:
                        break
                    left = True
                elif getattr(one.verdict, "ends_block", False):
                    if left and not isinstance(one.verdict, Jump):
                        return sources.get(argument, argument)
                    break
                changed = effect(one.code)
                now = {register: changed.copies.get(register, ()) for register in changed.writes}
                sources |= {to: sources.get(copied[0], copied[0]) if len(copied) == 1 else None
                            for to, copied in now.items()}
        return None


def _known(code: ProbedCode, place: Place | None) -> str | int | None:
    """Return the register or the constant that is a variable's value, or None for any other."""
    registers = code.arch.dwarf_registers
    if not isinstance(place, Location) or place.memory:
        return None
    if isinstance(place.term, Constant):
        return place.term.value
    if isinstance(place.term, Register) and place.term.number < len(registers) and (
            registers[place.term.number] != code.arch.zero_alias):
        return registers[place.term.number]
    return None
