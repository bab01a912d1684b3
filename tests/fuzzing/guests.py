"""Fuzzer of a traced FreeBSD guest with damaged programs and file systems.

The disk of our userland is in the guest's memory. The fuzzer changes bytes of it in programs,
inodes and directories, and then runs commands that use them. The guest may panic, hang or return
wrong data. The Python interface may raise only a KinstError, must return in bounded time, and must
restore the machine to its original state. The kernels are $KINST_KERNELS/ARCH/kernel; the fuzzer
needs at least one.

Left out are virtio disks, whose sectors the guest reads through the same functions, and guests with
several CPUs.
"""

import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import kinst_emu
from emu.unicorn.machine import UnicornMachine
from images import catalog
from kinst_emu.api.machine import Machine
from tests.conftest import ARCHES
from tests.fuzzing.changes import NUMBERS

LIMIT = 300_000_000  # maximum number of instructions per command
LONGEST = 20.0  # time limit for a test case in seconds, enough for LIMIT instructions
COMMANDS = ("work faults 9", "work calls 9", "work hash 9", "work room 1", "ls /", "ls /bin",
            "cat /etc/motd", "ls /sbin; ls /etc", "wc < /etc/motd",
            "cat /etc/motd > /tmp/a; cat /tmp/a",
            "work nosuch", "/etc/motd", "ls /nosuch")
PROGRAMS = (
    "syscall:::entry { @[probefunc, execname] = count(); }",
    "syscall:::entry { @[ustack(), usym(arg0)] = count(); }",
    "syscall::open*:entry { trace(copyinstr(arg1)); } syscall:::return { @ = quantize(arg0); }",
    "proc:::exec { trace(stringof(args[0])); } proc:::exec-success { stack(); ustack(); }",
    "fbt::vn_open_cred:entry { print(*args[0]); } fbt::vn_open_cred:return { trace(arg1); }",
    "kinst::exec_elf64_imgact: { @[probename] = count(); }",
    "profile-997 { @[stack(), ustack(), curthread->td_proc->p_comm] = count(); }",
    "vfs::vop_lookup:entry { print(*args[0]); }",
    "fbt::ffs_*:entry { @[probefunc, stack(3)] = count(); }",
)
RIGHT = (kinst_emu.KinstError,)


@dataclass
class Booted:
    """A machine that has booted to its shell's prompt.

    :param disk: address of the disk in the guest's physical memory
    :param parts: lists of offsets on the disk that are in use, one list for each kind of data
    """

    machine: Machine
    state: kinst_emu.State
    digest: str
    disk: int
    content: bytes
    parts: list[list[int]]


@dataclass
class Ground:
    """Booted machines keyed by architecture."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    machines: dict[str, Booted] = field(default_factory=dict)

    def booted(self, arch: str) -> Booted:
        """Return an architecture's machine; the first call boots it."""
        if arch not in self.machines:
            self.machines[arch] = _booted(arch)
        return self.machines[arch]


def arches() -> list[str]:
    """Return the architectures for which a FreeBSD kernel is configured."""
    return [arch for arch in ARCHES if catalog.real_kernel(arch) is not None]


def ground() -> Ground:
    """Return a ``Ground`` that boots machines on demand; exit if no kernel is configured."""
    if not arches():
        raise SystemExit("no FreeBSD kernel: set KINST_KERNELS (README.md)")
    return Ground()


def _booted(arch: str) -> Booted:
    machine = kinst_emu.open(str(catalog.real_kernel(arch)), userland=True).boot()
    emulated = machine.emulated
    assert isinstance(emulated, UnicornMachine)
    disk = emulated.image.options.memory_disk
    assert disk is not None
    content = bytes(disk.content[:])
    used = [at for at in range(0, len(content), 512) if any(content[at : at + 512])]
    programs = [at for at in used if content[at : at + 4] == b"\x7fELF"]
    # Sectors that are mostly zero, such as those of inodes and directories
    few = [at for at in used if content[at : at + 512].count(0) > 256]
    where = _place(emulated, content, used)
    return Booted(machine, machine.keep(), machine.digest(), where, content,
                  [programs, programs, few, used])


def _place(emulated: UnicornMachine, content: bytes, used: list[int]) -> int:
    """Return the address of the disk in the guest's physical memory."""
    base = emulated.board.ram_base
    ram = bytes(emulated.memory_part.view)
    probe = max(used, key=lambda at: len(set(content[at : at + 512])))
    at = ram.find(content[probe : probe + 512])
    while at >= 0:
        same = [ram[at - probe + n : at - probe + n + 512] == content[n : n + 512] for n in used]
        if sum(same) > 0.9 * len(used):  # the guest has changed some sectors since it booted
            return base + at - probe
        at = ram.find(content[probe : probe + 512], at + 1)
    raise AssertionError("the disk was not found in the guest's memory")


def _damage(rng: Any, here: Booted) -> None:
    for _ in range(rng.choice((4, 16, 64, 400))):
        part = rng.choice(here.parts)
        if not part:
            continue
        at = rng.choice(part) + rng.choice((rng.randrange(512), rng.randrange(0, 512, 4),
                                            rng.randrange(64)))
        size = rng.choice((1, 2, 4, 8))
        value = rng.choice((rng.choice(NUMBERS), rng.getrandbits(64))) & (1 << 8 * size) - 1
        data = value.to_bytes(size, "little")[: len(here.content) - at]
        here.machine.emulated.write_physical(here.disk + at, data)


def once(rng: Any, made: Ground) -> str:
    """Run commands on a damaged disk; return ``ran``, ``panicked`` or ``gave up``."""
    guest = made.booted(rng.choice(arches()))
    machine, begin, outcome = guest.machine, time.monotonic(), "ran"
    try:
        _damage(rng, guest)
        if rng.random() < 0.6:
            machine.trace(rng.choice(PROGRAMS))
        for _ in range(rng.choice((1, 2))):
            ran = machine.command(rng.choice(COMMANDS), LIMIT)
            assert isinstance(ran.output, bytes)
        if machine.program is not None:
            repr(machine.program.aggregations), repr(list(machine.program.records)[:5])
        repr(machine.stack()), machine.where(machine.pc)
    except RIGHT as error:
        assert "\n" not in str(error) and "\x1b" not in str(error), error
        outcome = "panicked" if "panic" in str(error) else "gave up"
    seconds = time.monotonic() - begin
    if machine.program is not None:
        machine.program.close()
    machine.close_probes()
    machine.restore(guest.state)
    if machine.digest() != guest.digest:
        raise AssertionError("the digest differs after the state was restored")
    if seconds > LONGEST:
        raise AssertionError(f"a guest that {outcome} took too long, {seconds:.1f} s")
    return outcome


