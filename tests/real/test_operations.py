"""Tests that vnode operation probes match the file system functions that are called.

The kernel calls these operations without executing their tracepoints.
"""

import re
from collections import Counter

import pytest
from elftools.elf.elffile import ELFFile

from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dwarf.members import offset_of
from images import boots
from images.shell import run_command, with_userland
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

COMMAND = ("cat /etc/motd; ls /; echo x > /tmp/y; cat /tmp/y | wc; rm /tmp/y; mkdir /tmp/d; "
           "rmdir /tmp/d; cat /nope")
LIMIT = 4_000_000_000
VECTOR = re.compile(r"\w+_(vnodeops\d?|specops|fifoops\d?)")
# The functions that implement these operations have no other callers.
OPERATIONS = ("vop_lookup vop_cachedlookup vop_create vop_mkdir vop_rmdir vop_remove vop_getattr "
              "vop_readdir vop_inactive vop_open vop_close vop_read vop_write").split()


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


@pytest.fixture(scope="module")
def untraced(kernel):
    machine = boots.booted(kernel)
    run_command(machine, COMMAND, LIMIT)
    return machine.digest()


def functions(machine, types, operation):
    """Return the names of the functions that implement an operation in all file systems."""
    at = offset_of(types, "struct vop_vector", operation)
    with machine.image.path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".symtab")
        vectors = [s["st_value"] for s in symbols.iter_symbols() if VECTOR.fullmatch(s.name)]
    addresses = {machine.read_u64(vector + at) for vector in vectors}
    return {machine.image.symbols.function_at(a).name for a in addresses if a}


@pytest.mark.parametrize("path", PATHS)
def test_vop_entry_and_return_probes_fire_as_often_as_file_system_functions(
        kernel, untraced, path):
    machine = boots.booted(kernel)
    types = kernel_types(kernel)
    breakpoints = Breakpoints(machine, path=path)
    probes = {}
    for n, declared in enumerate(breakpoints.declared):
        if (declared.provider, declared.module) == ("vfs", "vop"):
            number = breakpoints.add_static(n, lambda: types, lambda: debug_index(kernel))
            probes[declared.function, declared.name] = number
    carried_out = {}
    for operation in OPERATIONS:
        for name in functions(machine, types, operation):
            try:
                for number in fbt.create(breakpoints, name, fbt.ENTRY):
                    carried_out[number] = operation
            except ProbeError:  # an empty function has no site for a probe
                pass
    breakpoints.enable()
    run_command(machine, COMMAND, LIMIT)
    breakpoints.disable()
    assert machine.digest() == untraced

    def count(number):
        return breakpoints.dispatcher.probe(number)[4]

    wanted = Counter()
    for number, operation in carried_out.items():
        wanted[operation] += count(number)
    assert {operation: count(probes[operation, "entry"]) for operation in OPERATIONS} == wanted
    assert all(wanted[operation] for operation in OPERATIONS if operation != "vop_write")
    entries = {f: count(n) for (f, name), n in probes.items() if name == "entry"}
    assert entries == {f: count(n) for (f, name), n in probes.items() if name == "return"}
    assert sum(1 for n in entries.values() if n) > 15
    assert breakpoints.dispatcher.probe(probes["vop_lookup", "entry"])[3] == ProbeKind.STATIC


def test_vop_arguments_match_those_of_the_file_system_functions(kernel):
    """Compare each probe with the function that is entered just after it or returns just before."""
    ran = run("kdtrace", "-k", str(kernel.path), "-qn", """
        vfs:vop:vop_getattr:entry, vfs:vop:vop_lookup:entry { trace(arg0); trace(arg1); }
        fbt::ufs_getattr:entry, fbt::vfs_cache_lookup:entry {
            trace(((struct vop_getattr_args *)arg0)->a_vp); trace(arg0); printf("\\n"); }
        fbt::ufs_getattr:return, fbt::vfs_cache_lookup:return { trace((int)arg1); }
        vfs:vop:vop_getattr:return, vfs:vop:vop_lookup:return { trace((int)arg2); printf("\\n"); }
        """.replace("\n        ", " "), "-c", "$ ls /; cat /nope; cat /etc/motd >/tmp/z")
    assert ran.returncode == 0, ran.stderr
    numbers = [[int(n) % (1 << 64) for n in re.findall(r"-?[0-9]+", row)]
               for row in ran.stdout.splitlines() if re.fullmatch(r"[ 0-9-]+", row)]
    entries = [row for row in numbers if len(row) == 4]
    assert entries and all(row[:2] == row[2:] for row in entries), numbers
    returns = [row for row in numbers if len(row) == 2]
    assert returns and all(row[0] == row[1] for row in returns), numbers
