"""Tests that system call probes match the calls that the kernel's systrace hook receives."""

import re
import struct
from collections import Counter, defaultdict

import pytest

from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dtrace.run.kernel import KernelSurroundings
from dtrace.run.kernel_probes import KernelProbes
from dwarf.types import find_member
from emu.arch.architectures import arch_of
from emu.devices.virtio_block import IN, OUT, VirtioBlock
from emu.machine.machine import StopReason, Until
from images import boots, catalog
from images.shell import run_command, with_userland
from images.systems import with_disks
from kinst.probes import system_calls
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.machine import Machine
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

COMMAND = "cat /etc/motd; cat /nope; work calls 5; work faults 3; rm /tmp/x; echo y > /tmp/x"
LIMIT = 4_000_000_000
HOOK = "bus_null_rescan"  # an empty function that the kernel calls as its hook
ENTRY, RETURN = 0, 1


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


@pytest.fixture(scope="module")
def types(kernel):
    return kernel_types(kernel)


class Thread:
    """The current thread, whose members are read with the kernel's types."""

    def __init__(self, machine, types):
        self.machine, self.types = machine, types
        self.at = system_calls.offsets(types, machine.guest.programs.call_members)
        self.here = machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))

    def number(self, offset, size=4):
        value = int.from_bytes(self.machine.read(self.here + offset, size), "little")
        return value - (1 << 32) if size == 4 and value >> 31 else value

    @property
    def pid(self):
        (kind,) = self.types.named("struct proc")[:1]
        member = find_member(kind, "p_pid").offset // 8
        return int.from_bytes(self.machine.read(self.number(8, 8) + member, 4), "little")


def by_the_kernels_hook(kernel, types):
    """Return each process's system calls as the kernel's hook receives them.

    An entry is (module, name, arguments), a return (module, name, value, errno).
    """
    machine = boots.booted(kernel)
    symbols = machine.image.symbols
    entries = {}
    for probe in machine.guest.probes.calls(machine.image, machine):
        at = probe.call.table.base + probe.call.table.size * probe.call.index
        if not probe.call.returns:
            entries[at] = probe
            machine.write(at + 20, struct.pack("<II", 1, 1))  # sy_entry, sy_return
    machine.write_u64(symbols.find("systrace_probe_func").address, symbols.find(HOOK).address)
    machine.write(symbols.find("systrace_enabled").address, b"\1")
    calls = defaultdict(list)
    machine.type(f"{COMMAND}\r".encode())
    prompt = machine.guest.boot.shell_prompt.encode()
    prompts = machine.console.text.count(prompt)
    while machine.console.text.count(prompt) == prompts:
        stop = machine.run(Until(addresses=[symbols.find(HOOK).address], instructions=LIMIT))
        if stop.reason is not StopReason.ADDRESS:
            break
        call, kind, value = (machine.read_register(machine.arch.arguments[n]) for n in range(3))
        probe = entries[machine.read_u64(call + 8)]
        thread = Thread(machine, types)
        if kind == ENTRY:
            members = system_calls.arguments(types, machine.image, probe.call.function)
            words = struct.unpack("<8Q", machine.read(call + 16, 64))
            calls[thread.pid].append((probe.module, probe.function, tuple(
                cut(word, system_calls.width(m)) for word, m in zip(words, members, strict=False))))
        else:
            assert kind == RETURN
            value = value & 0xFFFFFFFF
            value = value - (1 << 32) if value >> 31 else value
            calls[thread.pid].append((probe.module, probe.function, value,
                                      thread.number(thread.at.error)))
    return calls


def cut(word, width):
    if not width:
        return word
    word &= (1 << abs(width)) - 1
    return (word - (1 << -width)) % (1 << 64) if width < 0 and word >> -width - 1 else word


def probed(kernel, types, path):
    machine = boots.booted(kernel)
    found = defaultdict(list)

    def fire(probe, state):
        static = breakpoints.static(probe.id - 1)
        thread = Thread(machine, types)
        numbers = breakpoints.dispatcher.made
        if static.call.returns:
            value = numbers[0] - (1 << 64) if numbers[0] >> 63 else numbers[0]
            assert numbers[0] == numbers[1]
            found[thread.pid].append((static.module, static.function, value,
                                      thread.number(thread.at.error)))
        else:
            members = system_calls.arguments(types, machine.image, static.call.function)
            found[thread.pid].append((static.module, static.function, numbers[: len(members)]))

    breakpoints = Breakpoints(machine, fire=fire, path=path)
    numbers = [breakpoints.add_static(n, lambda: types)
               for n, one in enumerate(breakpoints.declared) if one.call is not None]
    breakpoints.enable()
    run_command(machine, COMMAND, LIMIT)
    breakpoints.disable()
    return machine, breakpoints, numbers, found


@pytest.fixture(scope="module")
def untraced(kernel):
    machine = boots.booted(kernel)
    run_command(machine, COMMAND, LIMIT)
    return machine.digest()


@pytest.mark.parametrize("path", PATHS)
def test_system_call_probes_match_the_kernels_hook_and_change_nothing(
        kernel, types, untraced, path):
    machine, breakpoints, numbers, found = probed(kernel, types, path)
    assert machine.digest() == untraced
    wanted = by_the_kernels_hook(kernel, types)
    commands = [pid for pid in wanted if any(
        call[1] == "execve" for call in wanted[pid])]  # excludes the shell, which only waits
    assert len(commands) >= 4
    for pid in commands:
        assert found[pid] == wanted[pid]
    calls = [call for pid in commands for call in found[pid]]
    named = Counter(call[1] for call in calls if len(call) == 3)
    assert named["getppid"] >= 5 and ("freebsd", "open", -1, 2) in calls
    assert sum(breakpoints.dispatcher.probe(n)[4] for n in numbers) == sum(map(len, found.values()))


def test_every_system_call_is_listed_with_the_arguments_of_its_prototype(kernel, types):
    machine = boots.booted(kernel)
    probes = KernelProbes(Breakpoints(machine), False, lambda: debug_index(kernel), lambda: types)
    listed = probes.match(("syscall", "freebsd", "", ""))
    names = [p.function for p in listed if p.name == "entry"]
    assert len(names) == len([p for p in listed if p.name == "return"]) > 550
    assert {"read", "open", "execve", "mmap", "_exit", "nanosleep"} <= set(names)
    shown = KernelSurroundings(kernel, types, probes, lambda content: 0, print)
    assert [shown.listed(p) for p in listed if p.function == "read"] == [
        ["int", "userland void *", "size_t"], ["ssize_t", "ssize_t"]]
    function = next(p for p in listed if p.function == "mmap")
    call = probes.declared(function).call
    assert [(m.name, system_calls.width(m)) for m in
            system_calls.arguments(types, kernel, call.function)] == [
        ("addr", 0), ("len", 0), ("prot", -32), ("flags", -32), ("fd", -32), ("pos", 0)]


COUNTED = """
syscall:::entry /execname == "work"/ { @[probefunc] = count(); }
syscall::write:return /execname == "cat"/ { @sum["bytes"] = sum(arg1); }
proc:::create, proc:::exit, proc:::exec-success, proc:::signal-send { @[probename] = count(); }
fbt::vm_fault_trap:entry /execname == "work"/ { @["faults"] = count(); }
"""


def test_the_work_of_programs_is_counted_exactly_without_changing_the_digest(kernel):
    """The programs cause 1,000 calls, 50 page faults, 35 written bytes and 4 new processes."""
    words = ("kdtrace", "-k", str(kernel.path), "-q", "--digest", "-c",
             "$ work calls 1000; work faults 50; cat /etc/motd; kill -15 99999", "-n")
    traced, plain = run(*words, COUNTED), run(*words, "BEGIN { }")
    assert traced.returncode == plain.returncode == 0, traced.stderr
    counts = dict(re.findall(r"^ +([\w-]+) +(\d+)$", traced.stdout, re.MULTILINE))
    assert counts == {"mmap": "1", "munmap": "1", "_exit": "2", "getppid": "1000", "bytes": "35",
                      "create": "4", "exec-success": "4", "exit": "4", "signal-send": "4",
                      "faults": "50"}
    assert traced.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]


def test_io_probes_see_every_request_to_a_disk(kernel, monkeypatch):
    """The requests that the device carries out match the firings of io:::start."""
    requests = []
    carry_out = VirtioBlock._carry_out

    def counted(device, chain):
        kind, _reserved, sector = struct.unpack("<IIQ", chain.readable[:16])
        if kind in (IN, OUT):
            length = (len(chain.readable) - 16 if kind == OUT
                      else sum(size for _at, size in chain.writable) - 1)
            requests.append((1 if kind == IN else 2, sector * 512, length))
        return carry_out(device, chain)

    disk = catalog.userland(guest_arch(kernel))
    machine = Machine(Kernel(with_disks(real_kernel(guest_arch(kernel)), [disk])),
                            boots.booted(with_disks(real_kernel(guest_arch(kernel)), [disk])))
    monkeypatch.setattr(VirtioBlock, "_carry_out", counted)
    with machine.trace('io:::start /stringof(args[1]->device_name) == "vtbd"/ {'
                       " trace(args[0]->bio_cmd); trace(args[0]->bio_offset);"
                       " trace(args[0]->bio_length); }") as traced:
        ran = machine.command("cat /etc/motd; echo x > /tmp/x; cat /bin/check > /tmp/y; sync; "
                              "sleep 2")
    assert ran.status == 0
    firings = [tuple(record.values) for record in traced.records]
    assert len(firings) > 20 and {1, 2} == {command for command, _at, _length in firings}
    assert sorted(firings) == sorted(requests)


def guest_arch(kernel):
    return arch_of(kernel).name
