"""Tests that the probes of dtmalloc agree with the statistics that the kernel keeps of types."""

from collections import Counter

import pytest

from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dwarf.members import offset_of
from emu.guests.freebsd.allocation_types import allocation_probes
from emu.machine.running_thread import per_cpu
from images import boots, catalog
from images.shell import run_command, with_userland
from kinst.probes.breakpoints import DIRECT, GUEST, Breakpoints
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

COMMANDS = "cat /etc/motd; work faults 9; mkdir /tmp/x; cat /etc/motd | cat"
MASK = (1 << 64) - 1
LIMIT = 4_000_000_000
COUNTED = {"malloc": ("mts_numallocs", "mts_memalloced"), "free": ("mts_numfrees", "mts_memfreed")}


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


def statistics(machine, types):
    """Return {(type, event): (number, bytes)} from the memory of the machine's only CPU."""
    cpu = machine.read_u64(per_cpu(machine) + offset_of(types, "struct pcpu", "pc_zpcpu_offset"))
    found = {}
    for probe in allocation_probes(machine.image, machine):
        at = machine.read_u64(probe.allocation.kind
                              + offset_of(types, "struct malloc_type", "ks_mti.mti_stats")) + cpu
        found[probe.function, probe.name] = tuple(
            machine.read_u64((at + offset_of(types, "struct malloc_type_stats", member)) & MASK)
            for member in COUNTED[probe.name])
    return found


@pytest.mark.parametrize("path", [GUEST, DIRECT])
def test_the_probes_count_what_the_kernel_counts(kernel, path):
    machine = boots.booted(kernel)
    types, debug = kernel_types(kernel), debug_index(kernel)
    probes = Breakpoints(machine, path=path, records=True)
    numbers = {probes.add_static(n, lambda: types, lambda: debug): one
               for n, one in enumerate(probes.declared) if one.allocation is not None}
    before = statistics(machine, types)
    probes.enable()
    run_command(machine, COMMANDS, LIMIT)
    fired = {}
    for record in probes.firings():
        one = numbers[record.probe.id - 1]
        count, size = fired.get((one.function, one.name), (0, 0))
        fired[one.function, one.name] = count + 1, size + record.registers[3]
        assert record.registers[0] == one.allocation.kind
    probes.disable()
    after = statistics(machine, types)
    counted = {key: (after[key][0] - number, after[key][1] - size)
               for key, (number, size) in before.items() if after[key][0] != number}
    assert len(counted) > 10 and fired == counted


def test_tracing_allocations_does_not_change_the_run(kernel):
    digests = [run("kdtrace", "-k", str(kernel.path), "-qn", program, "--digest", "-c",
                   f"$ {COMMANDS}").stdout.split("digest ")[1]
               for program in ("BEGIN { }", "dtmalloc::: { @[probefunc] = sum(arg3); }")]
    assert digests[0] == digests[1]


def test_arguments_are_those_of_the_type_and_the_cpu(kernel):
    """After an allocation, the statistics that args[2] points to include it already."""
    ran = run("kdtrace", "-k", str(kernel.path), "-qn",
              "dtmalloc::temp:malloc { printf(\"%s %d %d %d|\", stringof(args[0]->ks_shortdesc), "
              "args[1] == &args[0]->ks_mti, args[3], args[4]); self->at = args[2]; "
              "self->n = args[2]->mts_numallocs; } fbt::malloc:return /self->at/ "
              "{ printf(\"%d\", self->at->mts_numallocs - self->n); }",
              "-c", "malloc(5000, &M_TEMP, 2); malloc(1000000, &M_TEMP, 2)")
    rows = ran.stdout.split("\n")
    assert rows[0].startswith("temp 1 8192 ") and "temp 1 1003520 -1|" in ran.stdout, ran.stderr


def test_freebsds_dtmalloc_has_the_same_probes_and_counts(kernel):
    if not kernel.path.with_name(catalog.ROOT_FILE).is_file():
        pytest.skip("no base system: put the root.ufs of 'kinst images fetch RELEASE/ARCH --base' "
                    f"next to {kernel.path}")
    program = ('dtmalloc::: /execname == "ls"/ '
               '{ @[probeprov, probefunc, probename, arg4] = sum(arg3); }')
    command = (f"kldload dtraceall; dtrace -l -P dtmalloc; dtrace -qn '{program} "
               "tick-5s {{ exit(0); }}' & sleep 2; ls -l / /etc > /dev/null; wait".replace(
                   "{{", "{").replace("}}", "}"))
    ran = run("kdtrace", "-k", str(kernel.path), "--base", "--trap-path=direct", "-qn", program,
              "-c", f"$ {command}")
    lines = [line.split() for line in ran.stdout.splitlines()]
    theirs = {tuple(row[2:]) for row in lines if row[1:2] == ["dtmalloc"]}
    listed = run("kdtrace", "-k", str(kernel.path), "--base", "-lP", "dtmalloc").stdout
    ours = {tuple(line.split()[2:]) for line in listed.splitlines()[1:]}
    # After our list was read, the modules of DTrace have brought types of their own.
    assert len(ours) > 500 and ours <= theirs and len(theirs - ours) < 30, ran.stderr
    counts = Counter(tuple(row) for row in lines if row[:1] == ["dtmalloc"] and len(row) == 5)
    assert len(counts) > 5 and set(counts.values()) == {2}, ran.stdout
