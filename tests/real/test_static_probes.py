"""Tests that static probes match the linker sets that pyelftools reads from the kernel's file."""

import struct

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from dtrace.debug.kernel_types import kernel_types
from emu.guests.freebsd.static_probes import static_probes
from emu.machine.machine import Until
from images import boots
from images.shell import run_command, with_userland
from kinst.code.listing import ProbedInstruction
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.kinds import ProbeKind
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

COMMAND = "cat /etc/motd | wc; work faults 100"
LIMIT = 4_000_000_000
RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027, "EM_RISCV": 3}


class File:
    """Reader of the segments and linker sets in a kernel's file."""

    def __init__(self, path):
        self.elf = ELFFile(path.open("rb"))
        self.sections = {s.name: s for s in self.elf.iter_sections()}
        kind = RELATIVE[self.elf["e_machine"]]
        self.moved = {r["r_offset"]: r["r_addend"] for s in self.elf.iter_sections()
                      if isinstance(s, RelocationSection)
                      for r in s.iter_relocations() if r["r_info_type"] == kind}
        self.segments = [(s["p_vaddr"], s.data()) for s in self.elf.iter_segments("PT_LOAD")]

    def read(self, at, size):
        for base, data in self.segments:
            if base <= at < base + len(data):
                return data[at - base : at - base + size]
        raise AssertionError(f"{at:#x} is not in any segment")

    def word(self, at):
        return self.moved.get(at) or struct.unpack("<Q", self.read(at, 8))[0]

    def text(self, at):
        return self.read(at, 300).partition(b"\0")[0].decode()

    def members(self, name):
        section = self.sections[f"set_sdt_{name}_set"]
        return range(section["sh_addr"], section["sh_addr"] + section["sh_size"], 8)


@pytest.mark.parametrize("arch", ARCHES)
def test_all_static_probes_are_found_with_their_arguments_and_tracepoints(arch):
    kernel = real_kernel(arch)
    file = File(kernel.path)
    probes = [file.word(at) for at in file.members("probes")]
    arguments, points = {p: {} for p in probes}, {p: [] for p in probes}
    for at in map(file.word, file.members("argtypes")):
        (index,) = struct.unpack("<i", file.read(at, 4))
        translated = file.word(at + 16)
        arguments[file.word(at + 40)][index] = (
            file.text(file.word(at + 8)), file.text(translated) if translated else "")
    for at in file.members("tracepoint")[::4]:
        points[file.word(at)].append((file.word(at + 8), file.word(at + 16)))
    wanted = {}
    for p in probes:
        module, function, name = (file.text(file.word(p + at)) for at in (64, 72, 80))
        wanted[file.text(file.word(file.word(p + 8))), module or "kernel", function or "none",
               name.replace("__", "-")] = (
            [arguments[p][i] for i in range(len(arguments[p]))], points[p])
    machine = boots.booted(kernel)
    found = {(p.provider, p.module, p.function, p.name): (
        [(a.type, a.translated) for a in p.arguments],
        [(t.address, t.target) for t in p.tracepoints]) for p in static_probes(kernel, machine)}
    assert found == wanted
    assert len(found) == len(probes) > 500
    assert sum(len(points) for _arguments, points in found.values()) > 1400


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return with_userland(real_kernel(request.param))


def without_allocations(breakpoints):
    """Return the declared probes but those of allocations, which have no tracepoints."""
    return [one for one in breakpoints.declared if one.allocation is None]


def every_probe(machine, **how):
    breakpoints = Breakpoints(machine, **how)
    types = kernel_types(machine.image)
    numbers = [breakpoints.add_static(n, lambda: types)
               for n, one in enumerate(breakpoints.declared) if one.allocation is None]
    return breakpoints, numbers


@pytest.fixture(scope="module")
def untraced(kernel):
    machine = boots.booted(kernel)
    run_command(machine, COMMAND, LIMIT)
    return machine.digest()


@pytest.mark.parametrize("path", PATHS)
def test_static_probes_change_nothing_and_fire_as_often_as_kinst_probes(
        kernel, untraced, path):
    """Put kinst probes, which compute no arguments, on the same instructions for comparison."""
    machine = boots.booted(kernel)
    breakpoints, numbers = every_probe(machine, path=path)
    beside = {}
    for number, declared in zip(numbers, without_allocations(breakpoints), strict=True):
        beside[number] = [
            breakpoints.add(machine.image.symbols.function_at(point.address), ProbeKind.OFFSET,
                            instruction(breakpoints, point.address))
            for point in declared.tracepoints]
    breakpoints.enable()
    assert run_command(machine, COMMAND, LIMIT).status == 0
    breakpoints.disable()
    assert machine.digest() == untraced

    def count(number):
        return breakpoints.dispatcher.probe(number)[4]

    fired = {number: count(number) for number in numbers if count(number)}
    assert len(fired) > 30 and sum(fired.values()) > 1000
    assert any(breakpoints.static(number).call for number in fired)
    for number in numbers:
        assert breakpoints.static(number).call or guarded(breakpoints, number) or of_a_lock(
            breakpoints, number) or (
            count(number) == sum(map(count, beside[number]))), breakpoints.names(number)
    assert {breakpoints.names(n)[3] for n in fired if guarded(breakpoints, n)} >= {"exit"}


def of_a_lock(breakpoints, number):
    """Return whether a probe also fires for locks that bypass its tracepoints."""
    static = breakpoints.static(number)
    return static.provider == "lockstat" and breakpoints.is_bypassed(static)


def guarded(breakpoints, number):
    """Return whether the kernel executes a probe's tracepoint only while probes are enabled."""
    static = breakpoints.static(number)
    return (static.provider, static.name) in breakpoints.machine.guest.probes.guard[1]


@pytest.mark.parametrize("path", PATHS)
def test_proc_exit_fires_as_often_as_the_kernel_executes_its_tracepoint(
        kernel, path):
    """Run again with a kernel that believes that probes are enabled and executes the tracepoint."""
    command = "cat /etc/motd | wc; sh -c \"kill -9 $$\"; work faults 3"
    machine = boots.booted(kernel)
    breakpoints = Breakpoints(machine, path=path, records=True)
    (number,) = (n for n, one in enumerate(breakpoints.declared)
                 if (one.provider, one.name) == ("proc", "exit"))
    (point,) = breakpoints.declared[number].tracepoints
    number = breakpoints.add_static(number)
    breakpoints.enable()
    run_command(machine, command, LIMIT)
    breakpoints.disable()
    reasons = [r.registers[0] for r in breakpoints.firings()]
    machine = boots.booted(kernel)
    machine.write(machine.symbol("sdt_probes_enabled").address, b"\1")
    breakpoints = Breakpoints(machine, path="direct")
    own = breakpoints.add(machine.image.symbols.function_at(point.address), ProbeKind.OFFSET,
                          instruction(breakpoints, point.address))
    breakpoints.enable()
    run_command(machine, command, LIMIT)
    assert breakpoints.dispatcher.probe(own)[4] == len(reasons) >= 4
    assert reasons[:2] == [1, 1] and set(reasons) == {1, 2}  # CLD_EXITED, CLD_KILLED


def test_priv_and_mac_probes_fire_as_often_as_the_deciding_functions_return(kernel):
    """The kernel executes the code of priv and mac probes only while probes are enabled.

    Lookup privileges that priv(9) grants without a check return by another path.
    """
    ran = run("kdtrace", "-k", str(kernel.path), "-qn", """
        mac_framework:::mac-check-ok, mac_framework:::mac-check-err {
            @mac[strjoin("mac_", probefunc)] = sum(1); }
        fbt::mac_*_check_*:return { @mac[probefunc] = sum(-1); @every[probefunc] = count(); }
        priv::: { @priv = sum(1); }
        fbt::priv_check_cred:return { @priv = sum(-1); @asked = count(); }
        END { printa("mac %s %@d\\n", @mac); printa("every %s %@d\\n", @every);
              printa("priv %@d\\n", @priv); printa("asked %@d\\n", @asked); }
        """, "-c", "$ check")
    assert ran.returncode == 0, ran.stderr
    rows = [row.split() for row in ran.stdout.splitlines()]
    differ = {row[1]: int(row[2]) for row in rows if row[:1] == ["mac"] and row[2] != "0"}
    # mac_inet_check_add_addr() has no mac-check probe; mac_inpcb_check_deliver() returns at once
    # if no policy is loaded.
    assert differ.keys() <= {"mac_inet_check_add_addr", "mac_inpcb_check_deliver"}, differ
    assert sum(1 for row in rows if row[:1] == ["every"]) > 8
    assert ["priv", "0"] in rows
    assert [int(row[1]) > 100 for row in rows if row[:1] == ["asked"]] == [True]


def instruction(breakpoints, address):
    code = breakpoints.machine.read(address, 15)
    length, verdict = breakpoints.trap.instructions.classify(code, address)
    return ProbedInstruction(0, address, code[:length], verdict)


def test_probe_arguments_match_those_that_the_kernel_computes(kernel):
    """Jump to each tracepoint's target, compare the arguments, and restore the machine."""
    machine = boots.booted(kernel)
    breakpoints, numbers = every_probe(machine, path="direct", records=True)
    breakpoints.enable()
    run_command(machine, COMMAND, LIMIT)
    breakpoints.disable()
    by_number = dict(zip(numbers, without_allocations(breakpoints), strict=True))
    first = {}
    for record in breakpoints.firings():
        if record.probe.id - 1 in by_number and not (
                by_number[record.probe.id - 1].call or guarded(breakpoints, record.probe.id - 1)
                or of_a_lock(breakpoints, record.probe.id - 1)):
            first.setdefault(record.probe.id - 1, record)
    assert len(first) > 30
    gates = {machine.image.symbols.find(name).address: count
             for name, count in machine.guest.probes.gates.items()}
    wanted = sorted(first.items(), key=lambda one: one[1].instructions)
    machine = boots.booted(kernel)
    machine.type(f"{COMMAND}\r".encode())
    looked = 0
    for number, record in wanted:
        machine.run(Until(instructions=record.instructions))
        (point,) = [t for t in by_number[number].tracepoints if t.address == machine.pc]
        kept = machine.snapshot()
        machine.pc = point.target
        machine.run(Until(addresses=list(gates)))
        registers = [machine.read_register(name) for name in machine.arch.arguments[1:6]]
        assert machine.pc in gates and tuple(registers) == record.registers, by_number[number]
        machine.restore(kept)
        looked += 1
    assert looked == len(first)
