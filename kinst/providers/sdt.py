"""The SDT providers: probes that the kernel's source declares (proc, io, vfs, lockstat and others).

The kernel's tracepoints do nothing until they are patched to jump to the code that computes the
arguments.  Here a breakpoint replaces the tracepoint, the guest's own code computes the arguments
with the clock stopped (``kinst/probes/_tracepoint.pxi``), and the guest continues as if nothing had
happened.
"""

from dwarf.debug_file import DebugDataError
from emu.guest.static_probe import StaticProbe
from kinst.probes.probe_table import ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt, kinst_provider
from kinst.providers.patterns import is_glob, matches
from kinst.providers.pid import Pid
from kinst.providers.provider import MadeProbes, Provider, Wanted

OTHERS = (kinst_provider.PROVIDER, fbt.PROVIDER)  # providers that are not SDT providers


class Sdt(Provider):
    """Provider of all declared static probes, such as ``proc:::exec-success``."""

    name = "sdt"

    def matches(self, pattern: str) -> bool:
        return pattern not in OTHERS and (is_glob(pattern) or not Pid().matches(pattern))

    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        declared = probes.declared
        if not any(matches(wanted.provider, one.provider) for one in declared):
            if probes.unreadable:
                raise ProbeError(f"{wanted.text}: {'; '.join(probes.unreadable)}")
            allocations = probes.machine.guest.probes.allocations
            if allocations is not None and wanted.provider == allocations.provider:
                raise ProbeError(f"{wanted.text}: the kernel has no types of memory yet: it adds "
                                 "them while it boots")
            raise ProbeError(f"{wanted.text}: the kernel has no provider "
                             f"'{wanted.provider}'{_hint(wanted, declared)}")
        found = [n for n, one in enumerate(declared) if matches(wanted.provider, one.provider)
                 and matches(wanted.module, one.module) and matches(wanted.function, one.function)
                 and matches(wanted.name, one.name)]
        if not found:
            raise ProbeError(f"{wanted.text}: no static probe or system call of the kernel matches")
        made: list[int] = []
        refusals = list[str]()
        for n in found:
            try:
                made.append(probes.add_static(n, wanted.types, wanted.index))
            except ProbeError as error:
                refusals.append(str(error))
            else:
                refusals += probes.incomplete(n)
        if not made:
            # A reason that holds for all probes of a provider does not begin with a description.
            whole = not refusals[0].startswith((wanted.text, f"{declared[found[0]].provider}:"))
            raise ProbeError(f"{wanted.text}: {refusals[0]}" if whole else refusals[0])
        if is_glob(wanted.provider) or not wanted.provider:
            refusals += [f"{wanted.text}: {reason}" for reason in probes.unreadable]
        operations = [n for n in found if (declared[n].provider, declared[n].module)
                      == probes.machine.guest.probes.operations]
        if operations and not _has_debug_data(wanted):
            refusals.append(f"{wanted.text}: calls that bypass the tracepoints of "
                            f"{declared[operations[0]].provider}:{declared[operations[0]].module} "
                            "cannot be probed: the kernel has no DWARF")
        for (provider, name), what in probes.machine.guest.probes.unseen.items():
            if any(declared[n].provider == provider and matches(name, declared[n].name)
                   for n in found) and not is_glob(wanted.provider) and wanted.provider:
                refusals.append(f"{wanted.text}: {what}")
        return MadeProbes(made, [wanted.text], list(dict.fromkeys(refusals)))


def _has_debug_data(wanted: Wanted) -> bool:
    try:
        return wanted.index is not None and wanted.index() is not None
    except DebugDataError:
        return False


def _hint(wanted: Wanted, declared: list[StaticProbe]) -> str:
    if is_glob(wanted.provider):
        return ""
    *names, last = [*OTHERS, *sorted({one.provider for one in declared})]
    return f", only {', '.join(names)} and {last}"
