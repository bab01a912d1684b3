"""Tests of ``kinst why`` on system calls that fail in FreeBSD: the line that decides each error.

The lines of FreeBSD 15.0 were written down from its source before the command was tried.  Two calls
are left out: write(2) on a descriptor for reading, where the check is before a reference is taken,
and wait4(2) without children, where the compiler has removed the deciding branch.
"""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import real_kernel

SOURCE = Path(__file__).parent / "fails.c"
# Number of the call in fails.c: (error, lines of which one must be in the answer).
EXPECTED = {
    1: ("ENOENT", ["ufs/ufs/ufs_lookup.c:532", "ufs/ufs/ufs_lookup.c:339",
         "ufs/ufs/ufs_lookup.c:422", "ufs/ufs/ufs_lookup.c:423", "ufs/ufs/ufs_lookup.c:424",
         "ufs/ufs/ufs_lookup.c:425", "ufs/ufs/ufs_lookup.c:458", "ufs/ufs/ufs_lookup.c:471",
         "ufs/ufs/ufs_lookup.c:472", "ufs/ufs/ufs_lookup.c:473", "ufs/ufs/ufs_lookup.c:474",
         "ufs/ufs/ufs_lookup.c:475"]),
    2: ("EEXIST", ["kern/vfs_cache.c:4851", "kern/vfs_cache.c:4849"]),
    3: ("ENOTEMPTY", ["ufs/ufs/ufs_vnops.c:2274", "ufs/ufs/ufs_vnops.c:2272",
         "ufs/ufs/ufs_vnops.c:2273", "ufs/ufs/ufs_lookup.c:1336"]),
    4: ("EISDIR", ["kern/vfs_vnops.c:1585", "kern/vfs_vnops.c:1581",
         "kern/vfs_vnops.c:1584"]),
    5: ("EBADF", ["kern/kern_descrip.c:1506", "kern/kern_descrip.c:1504",
         "sys/filedesc.h:313"]),
    6: ("ESPIPE", ["kern/vfs_syscalls.c:2141", "kern/vfs_syscalls.c:2140"]),
    7: ("ENOTDIR", ["kern/vfs_cache.c:3180", "kern/vfs_cache.c:3179"]),
    9: ("ESRCH", ["kern/kern_sig.c:1935", "kern/kern_sig.c:1932", "kern/kern_sig.c:1934"]),
    10: ("EBADF", ["kern/kern_descrip.c:1062", "kern/kern_descrip.c:1061",
         "kern/kern_descrip.c:1062"]),
    11: ("EINVAL", ["vm/vm_mmap.c:238", "vm/vm_mmap.c:239", "vm/vm_mmap.c:240",
         "vm/vm_mmap.c:235", "vm/vm_mmap.c:236", "vm/vm_mmap.c:237"]),
    12: ("ENOTTY", ["ufs/ufs/ufs_vnops.c:2953", "ufs/ufs/ufs_vnops.c:2940",
         "ufs/ufs/ufs_vnops.c:2952"]),
    14: ("EAFNOSUPPORT", ["kern/uipc_socket.c:927", "kern/uipc_socket.c:924",
         "kern/uipc_socket.c:926"]),
    15: ("ENOTDIR", ["kern/vfs_syscalls.c:1084", "kern/vfs_syscalls.c:1083"]),
    16: ("EINVAL", ["kern/vfs_syscalls.c:2806", "kern/vfs_syscalls.c:2805"]),
    17: ("EINVAL", ["kern/vfs_syscalls.c:3581", "kern/vfs_syscalls.c:3580"]),
    18: ("EINVAL", ["kern/kern_time.c:526", "kern/kern_time.c:525"]),
    19: ("ENAMETOOLONG", ["kern/vfs_cache.c:5217", "kern/vfs_cache.c:5215"]),
    20: ("EPERM", ["kern/vfs_syscalls.c:1736", "kern/vfs_syscalls.c:1734"]),
    21: ("EACCES", ["kern/kern_exec.c:1878", "kern/kern_exec.c:1875",
         "kern/kern_exec.c:1876", "kern/kern_exec.c:1877"]),
    22: ("EINVAL", ["kern/kern_descrip.c:1009", "kern/kern_descrip.c:592",
         "kern/kern_descrip.c:1007", "kern/kern_descrip.c:1008"]),
    23: ("EINVAL", ["kern/kern_resource.c:662", "kern/kern_resource.c:661"]),
    24: ("EPERM", ["kern/vfs_syscalls.c:2053", "kern/vfs_syscalls.c:2052"]),
}


def lines_of(answer):
    """Return the lines in an answer: of what made the value, and of the branches."""
    found = list[str]()
    while answer:
        places = [answer["made"], *(reason[part] for reason in answer["reasons"]
                                    for part in ("test", "branch"))]
        for place in filter(None, places):
            found += [place["line"], place["after"], *(line for _name, line in place["inlined"])]
        answer = answer["earlier"]
    return found


@pytest.mark.parametrize("number", EXPECTED)
def test_the_line_that_decides_an_error_is_named(arch, number):
    if shutil.which("clang") is None and shutil.which("clang-19") is None:
        pytest.skip("clang is not installed: apt-get install clang")
    kernel, (error, wanted) = str(real_kernel(arch).path), EXPECTED[number]
    done = subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", "why", "-k", kernel,
                           "--json", f"{SOURCE} {number}"], capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert f"failed with {error} (" in answer["question"]
    found = lines_of(answer)
    assert any(line.endswith("/" + one) for line in found for one in wanted), (wanted, found)


def test_who_wrote_the_error_is_asked_by_one_command(arch):
    done = subprocess.run([
        sys.executable, "-m", "kinst_emu.commands.kinst", "replay", "-k",
        str(real_kernel(arch).path), "$ mkdir /etc", "-q", "--json", "--to", "failure",
        "--who-wrote", "curthread->td_errno"], capture_output=True, text=True, timeout=300,
        check=False)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout)["writes"][0]
    assert int(last["new"], 16) == errno.EEXIST
