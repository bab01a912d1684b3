"""Tests that inline copies, lines and frames of GENERIC kernels agree with LLVM's tools."""

import bisect
import os
import random
import re
import shutil
import struct
import subprocess
from collections import Counter, defaultdict

import pytest
import unicorn

from dtrace.calls.calls import Evaluation, check, parse
from dtrace.debug.debug_data import FileSources, Sources
from dtrace.stacks.stack import Stacks, failure
from dwarf._lines import LineTable
from dwarf.debug_file import debug_file, elf_file
from dwarf.index import DebugIndex, build
from emu.elf.reader import SHT_SYMTAB
from emu.machine.call import Caller, CallError
from emu.machine.running_thread import thread_of
from images import boots
from kinst.probes.breakpoints import Breakpoints
from kinst.providers import inline, kinst_provider
from kinst.providers.inline import Entrances
from kinst_emu.cli.inline_derivation import entered_in
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
TOOLS = ("llvm-dwarfdump", "llvm-dwarfdump-19", "llvm-dwarfdump-16", "llvm-dwarfdump-14")
ENTRY = re.compile(r"0x[0-9a-f]+: +DW_TAG_inlined_subroutine")
ORIGIN = re.compile(r'\s+DW_AT_abstract_origin\t\(0x[0-9a-f]+ "(.*)"\)')
RANGE = re.compile(r"\s+\[0x([0-9a-f]+), 0x([0-9a-f]+)\)")
BOUND = re.compile(r"\s+DW_AT_(low|high)_pc\t\(0x([0-9a-f]+)\)")


def by_dwarfdump(path):
    """Return the ranges of all inline copies as llvm-dwarfdump prints them, keyed by function."""
    tool = next((t for t in TOOLS if shutil.which(t)), None)
    if tool is None:
        pytest.skip("llvm-dwarfdump is not installed: apt-get install llvm")
    ranges = defaultdict(set)
    source = str(debug_file(elf_file(path)).path)
    with subprocess.Popen([tool, "--debug-info", source], stdout=subprocess.PIPE,
                          text=True) as process:
        name, pieces, low, inside = None, [], None, False
        for line in process.stdout:
            if line == "\n":
                if inside and name and pieces:
                    ranges[name].add(tuple(pieces))
                inside = False
            elif inside:
                if match := ORIGIN.match(line):
                    name = match[1]
                elif match := RANGE.match(line):
                    pieces.append((int(match[1], 16), int(match[2], 16)))
                elif match := BOUND.match(line):
                    if match[1] == "low":
                        low = int(match[2], 16)
                    elif low is not None:
                        pieces.append((low, int(match[2], 16)))
            elif ENTRY.match(line):
                name, pieces, low, inside = None, [], None, True
    return ranges


@pytest.mark.parametrize("arch", ARCHES)
def test_500_inline_functions_have_the_copies_that_dwarfdump_prints(arch):
    kernel = real_kernel(arch)
    theirs = by_dwarfdump(kernel.path)
    index = DebugIndex(build(kernel.file), kernel.path)
    entrances = Entrances(kernel)
    assert len(theirs) > 500
    for name in random.Random(SEED).sample(sorted(theirs), 500):
        ours = {tuple(p for p in copy.pieces) for copy in index.copies(name)}
        expected = {tuple((a, b) for a, b in pieces if a < b) for pieces in theirs[name]}
        assert ours == expected - {()}, f"{name}; KINST_SEED={SEED}"
        for copy in index.copies(name):
            name, offset = entered_in(kernel, index, copy, entrances)
            assert name is None or kernel.symbols.named(name)
            assert offset >= 0, "every part of this kernel's functions has a symbol"


def symbolized(path, addresses):
    """Yield llvm-symbolizer's frames for each address, the innermost first.

    A frame is (function, name of the file, line).
    """
    tool = next((t for t in ("llvm-symbolizer", "llvm-symbolizer-19") if shutil.which(t)), None)
    if tool is None:
        pytest.skip("llvm-symbolizer is not installed: apt-get install llvm")
    text = "\n".join(f"{address:#x}" for address in addresses)
    source = debug_file(elf_file(path)).path
    output = subprocess.run([tool, f"--obj={source}", "--inlines", "--output-style=LLVM"],
                            input=text, capture_output=True, text=True, check=True).stdout
    for block in output.rstrip("\n").split("\n\n"):
        lines = block.strip("\n").split("\n")
        yield [(name, where.rsplit(":", 2)[0].rpartition("/")[2], int(where.rsplit(":", 2)[1]))
               for name, where in zip(lines[::2], lines[1::2], strict=True)]


@pytest.mark.parametrize("arch", ARCHES)
def test_lines_and_inline_frames_of_10000_addresses_match_llvm_symbolizer(arch):
    kernel = real_kernel(arch)
    index, sources = DebugIndex(build(kernel.file), kernel.path), Sources(kernel)
    table = LineTable(FileSources(kernel.file).section(".debug_line"))
    rows = []  # (begin, end, line number program, file, line)
    for start, _first, _end in table.programs():
        before = None
        for address, file, line, ends in table.rows(start):
            if before is not None and before[0] < address:
                rows.append((before[0], address, start, before[1], before[2]))
            before = None if ends else (address, file, line)
    rows.sort()
    starts = [row[0] for row in rows]
    generator = random.Random(SEED)
    functions = [f for f in kernel.symbols.functions() if index.stack(f.address)]
    addresses = [f.address + generator.randrange(f.size)
                 for f in generator.choices(functions, k=10_000)]
    different = []
    for number, (address, theirs) in enumerate(
            zip(addresses, symbolized(kernel.path, addresses), strict=True)):
        at = bisect.bisect_right(starts, address) - 1
        begin, end, program, file, line = rows[at] if at >= 0 else (0, 0, 0, 0, 0)
        if not begin <= address < end:
            continue  # padding between functions has no line
        where = f"{sources.files(program).get(file, '?')}:{line}"
        if number < 40:
            assert sources.line(address) == (where if line else "?")
        ours = []
        for function in index.stack(address):
            ours.append((function.name, where.rpartition(":")[0].rpartition("/")[2],
                         int(where.rpartition(":")[2])))
            where = sources.call(index, function) if function.inlined else where
        # llvm-symbolizer takes the outermost name from the symbol table, so these names may differ.
        names = [frame[0] for frame in ours[:-1]], [frame[0] for frame in theirs[:-1]]
        lines = [frame[1:] for frame in ours], [frame[1:] for frame in theirs]
        if names[0] != names[1] or lines[0] != lines[1]:
            different.append((hex(address), ours, theirs))
    assert not different, (len(different), different[:5], f"KINST_SEED={SEED}")


class Watched:
    """Counter of entries and exits of inline copies, with a hook on every instruction.

    A copy is entered at its first instruction, and left after the last one before an instruction
    outside its ranges. Functions that call themselves within a copy are not supported.
    """

    def __init__(self, machine, copies):
        self._machine, self._inside = machine, {}
        self.ends = {"entry": Counter(), "return": Counter()}
        self._of = {}  # copies keyed by function
        entrances = Entrances(machine.image)
        for copy in copies:
            begins = entrances.of(copy)
            function = machine.image.symbols.function_at(begins[0])
            self._of.setdefault(function, []).append((copy.number, begins, copy.pieces))
        self.hooks = [machine.uc.hook_add(
            unicorn.UC_HOOK_CODE, self._executed, copies, begin=function.address,
            end=function.address + function.size - 1) for function, copies in self._of.items()]

    def _executed(self, _uc, at, _size, copies):
        thread = thread_of(self._machine)
        for number, begins, pieces in copies:
            key = thread, number
            last = self._inside.get(key)
            inside = any(low <= at < high for low, high in pieces)
            if last is not None and not inside:
                self.ends["return"][last] += 1
                del self._inside[key]
            elif last is not None:
                self._inside[key] = at
            elif at in begins:
                self.ends["entry"][at] += 1
                self._inside[key] = at


@pytest.mark.parametrize("end", ["entry", "return"])
@pytest.mark.parametrize("arch", ARCHES)
def test_inline_probes_fire_as_often_as_unicorn_hooks_count(arch, end):
    """In a run without breakpoints, hooks count how often inline copies are entered and left."""
    machine = boots.booted(real_kernel(arch))
    program = parse('p = malloc(100, &M_TEMP, 2); free(p, &M_TEMP); pause_sbt("x", 10000000, 0, 0)')
    check(machine.image, program)
    breakpoints = Breakpoints(machine, path="direct")
    index = DebugIndex(build(machine.image.file), machine.image.path)
    probes = inline.create(breakpoints, index, "critical_enter", end)
    assert len(probes.numbers) > 100 and not probes.reports
    plain = machine.snapshot()
    watched = Watched(machine, index.copies("critical_enter"))
    machine.engine.flush_translations()
    Evaluation(Caller(machine)).run(program)
    for hook in watched.hooks:
        machine.uc.hook_del(hook)
    machine.engine.flush_translations()
    machine.restore(plain)
    breakpoints.enable()
    Evaluation(Caller(machine)).run(program)
    breakpoints.disable()
    fired = {address: count for address, _c, _f, _k, count, _r in
             (breakpoints.dispatcher.probe(n) for n in set(probes.numbers)) if count}
    assert fired == dict(watched.ends[end]) and sum(fired.values()) > 10


@pytest.mark.parametrize("arch", ARCHES)
def test_a_stripped_kernel_boots_alike_and_its_global_functions_can_be_probed(arch, tmp_path):
    image, stripped = real_kernel(arch), tmp_path / "kernel"
    data = bytearray(image.path.read_bytes())
    table, size, count = (struct.unpack_from(form, data, at)[0]
                          for form, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    for at in range(table, table + size * count, size):
        if struct.unpack_from("<I", data, at + 4)[0] == SHT_SYMTAB:
            struct.pack_into("<II", data, at, 0, 0)  # no name, SHT_NULL
    stripped.write_bytes(data)
    booted = [run("kinst", "boot", "-k", str(path), "--digest")
              for path in (image.path, stripped)]
    digests = {result.stdout.split("digest ")[1].split()[0] for result in booted}
    assert len(digests) == 1
    traced = run("kdtrace", "-k", str(stripped), "-n",
                 "fbt::kern_mkdirat:entry,syscall::mkdir:return {}", "-c", "$ mkdir /tmp/new")
    assert "mkdir:return" in traced.stdout and "kern_mkdirat:entry" in traced.stdout, traced
    unknown = run("kdtrace", "-k", str(stripped), "-n", "syscall::mkdir:entry {}")
    assert unknown.returncode and "arguments of sys_mkdir are unknown" in unknown.stderr, unknown
    missing = run("kdtrace", "-k", str(stripped), "-n", "fbt::fast_syscall:entry")
    assert missing.returncode and "stripped" in missing.stderr, missing


@pytest.mark.parametrize("arch", ARCHES)
def test_the_caller_is_the_same_at_every_instruction_of_a_call(arch):
    """At every instruction, the caller must equal the return address at the function's entry.

    Instructions after a function has restored its frame pointer are skipped except on amd64, since
    LLVM describes epilogues only for amd64.
    """
    machine = boots.booted(real_kernel(arch))
    stacks, callers, seen = Stacks(machine), [], Counter()

    def fire(probe, state):
        caller = [*(a for a, _return in stacks.addresses(state.get, 2)), None][1]
        sp, pointer = (state.get(r) for r in (machine.arch.sp, machine.arch.frame_record[0]))
        if probe.instruction.offset == 0:
            expected = (state.get(machine.arch.link) if machine.arch.link
                        else machine.read_u64(state.get(machine.arch.sp)))
            callers.append([probe.function, expected, sp, pointer, False])
        while callers[-1][0] != probe.function or callers[-1][2] < sp:
            callers.pop()  # the function at the end of the list has returned
        callers[-1][4] |= pointer != callers[-1][3]
        if arch != "amd64" and callers[-1][4] and pointer == callers[-1][3]:
            return
        if callers[-1][1] == machine.guest.entry_address(machine.image):
            callers[-1][1] = None  # the machine's own call has no caller
        assert caller == callers[-1][1], f"{probe.function}+{probe.instruction.offset}"
        seen[probe.function] += 1

    breakpoints = Breakpoints(machine, fire)
    for function in ("malloc", "uma_zalloc_arg", "free", "uma_zfree_arg", "vsnprintf", "kvprintf"):
        kinst_provider.create(breakpoints, function, "")
    breakpoints.enable()
    program = parse('p = malloc(100, &M_TEMP, 2); free(p, &M_TEMP); '
                    'snprintf(buf(64), 64, "%d %s", 42, "xyz")')
    Evaluation(Caller(machine)).run(program)
    breakpoints.disable()
    assert len(seen) >= 5 and sum(seen.values()) > 500


@pytest.mark.parametrize("arch", ARCHES)
def test_the_stack_of_a_panic_includes_frames_from_before_the_trap(arch):
    """The backtrace includes the instruction that accessed an unmapped address."""
    machine = boots.booted(real_kernel(arch))
    with pytest.raises(CallError, match="panicked"):
        Caller(machine).call(machine.symbol("strlen").address, [16], "strlen")
    (culprit,) = [line for line in failure(machine) if "kernel`strlen+" in line]
    entry = failure(machine)[failure(machine).index(culprit) - 1]
    assert any(f"kernel`{name}+" in entry for name in machine.guest.traps.trap_entries)
