"""Tests that types of GENERIC kernels from DWARF and CTF match llvm-dwarfdump and ctfdump."""

import os
import random
import re
import shutil
import subprocess
from collections import defaultdict

import pytest

from dtrace.calls.prototypes import Prototypes
from dwarf.ctf import ctf_types
from dwarf.debug_file import debug_file, elf_file
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import DebugIndex, build
from dwarf.types import Enumeration, Integer, Structure, size_of, strip
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import refused, run

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
DUMPERS = ("llvm-dwarfdump", "llvm-dwarfdump-19", "llvm-dwarfdump-16", "llvm-dwarfdump-14")
TAG = re.compile(r"0x[0-9a-f]+:( +)DW_TAG_(\w+)")
VALUE = re.compile(r'\s+DW_AT_(\w+)\t\(("?)(.*?)"?\)$')
WANTED = {"name", "byte_size", "data_member_location", "bit_size", "data_bit_offset", "declaration"}
_dumped = {}


def dumped(path):
    """Return the layouts that llvm-dwarfdump prints for all structures and unions, keyed by name.

    A layout is (size, ((member, bit offset, bit width), ...)).
    """
    path = debug_file(elf_file(path)).path
    if path in _dumped:
        return _dumped[path]
    tool = next((t for t in DUMPERS if shutil.which(t)), None)
    if tool is None:
        pytest.skip("llvm-dwarfdump is not installed: apt-get install llvm")
    layouts = defaultdict(set)
    open_ = []  # (indentation, attributes, members) of the enclosing structures
    current = {}
    with subprocess.Popen([tool, "--debug-info", str(path)], stdout=subprocess.PIPE,
                          text=True) as process:
        for line in process.stdout:
            if line.startswith("0x"):
                match = TAG.match(line)
                if not match:
                    continue
                indentation, tag, current = len(match[1]), match[2], {}
                while open_ and open_[-1][0] >= indentation:
                    finish(open_.pop(), layouts)
                if tag in ("structure_type", "union_type"):
                    open_.append((indentation, current, []))
                elif tag == "member" and open_ and open_[-1][0] + 2 == indentation:
                    open_[-1][2].append(current)
            elif open_ and (match := VALUE.match(line)) and match[1] in WANTED:
                current[match[1]] = match[3] if match[2] else match[3] == "true" or int(match[3], 0)
    while open_:
        finish(open_.pop(), layouts)
    _dumped[path] = layouts
    return layouts


def finish(entry, found):
    _indentation, attributes, members = entry
    if "name" in attributes and "declaration" not in attributes:
        found[attributes["name"]].add((attributes["byte_size"], tuple(
            (m.get("name", ""), m.get("data_bit_offset", 8 * m.get("data_member_location", 0)),
             m.get("bit_size")) for m in members)))


def shape(structure):
    return structure.size, tuple((m.name, m.offset, m.width) for m in structure.members)


def ours(types, name):
    return {shape(kind) for tag in ("struct", "union") for kind in types.named(f"{tag} {name}")}


@pytest.mark.parametrize("arch", ARCHES)
def test_300_random_structs_from_dwarf_match_dwarfdump(arch):
    path = real_kernel(arch).path
    theirs = dumped(path)
    types = DwarfTypes(debug_file(elf_file(path)), DebugIndex(build(elf_file(path)), path))
    for name in random.Random(SEED).sample(sorted(theirs), 300):
        assert ours(types, name) == theirs[name], f"{name}; KINST_SEED={SEED}"


@pytest.mark.parametrize("arch", ARCHES)
def test_300_random_structs_from_ctf_match_dwarfdump(arch):
    """The CTF data is compared with the DWARF data from which it was generated.

    In CTF, a bit-field of an enumeration has no width, and a bit-field that fills its type is an
    ordinary member.
    """
    path = real_kernel(arch).path
    theirs = dumped(path)
    types = ctf_types(elf_file(path))
    if types is None:
        pytest.skip(f"{path} has no .SUNW_ctf")
    known = sorted({n.partition(" ")[2] for n in types.names()
                    if n.startswith(("struct", "union"))})
    assert len(known) > 1000
    for name in random.Random(SEED).sample(known, 300):
        members = [m for tag in ("struct", "union") for kind in types.named(f"{tag} {name}")
                   for m in kind.members]
        enumerations = {m.name for m in members if isinstance(strip(m.type), Enumeration)}
        full = {(m.name, 8 * size_of(m.type)) for m in members if m.width is None}
        expected = {(size, tuple((n, at, None if n in enumerations or (n, width) in full else width)
                                 for n, at, width in members)) for size, members in theirs[name]}
        missing = ours(types, name) - expected
        assert not missing, f"{name}: {missing} instead of {expected}; KINST_SEED={SEED}"


@pytest.mark.parametrize("arch", ARCHES)
def test_every_struct_from_ctf_matches_ctfdump(arch):
    path = real_kernel(arch).path
    tool = shutil.which(os.environ.get("KINST_CTFDUMP", "ctfdump"))
    if tool is None:
        pytest.skip("FreeBSD's ctfdump is not installed: set $KINST_CTFDUMP to its path")
    output = subprocess.run([tool, "-t", str(path)], capture_output=True, text=True, check=True)
    theirs, members = defaultdict(list), None
    for line in output.stdout.splitlines():
        if match := re.match(r"  [<\[]\d+[>\]] (STRUCT|UNION) (\S+) \((\d+) bytes\)", line):
            members = []
            theirs[f"{match[1].lower()} {match[2]}"].append((int(match[3]), members))
        elif match := re.match(r"\t(\S+) type=\d+ off=(\d+)", line):
            members.append(("" if match[1] == "(anon)" else match[1], int(match[2])))
    del theirs["struct (anon)"], theirs["union (anon)"]
    types = ctf_types(elf_file(path))
    assert len(theirs) > 1000
    for name, expected in theirs.items():
        layouts = [(k.size, [(m.name, m.offset) for m in k.members]) for k in types.named(name)]
        assert layouts == expected, name


@pytest.mark.parametrize("arch", ARCHES)
def test_functions_and_variables_have_the_same_types_in_dwarf_and_in_ctf(arch):
    """Compare the kinds of types, the names and sizes of structures, and the sizes of integers."""
    kernel = real_kernel(arch)
    path = kernel.path
    file = elf_file(path)
    dwarf = DwarfTypes(debug_file(file), DebugIndex(build(file), path))
    ctf = ctf_types(file)
    if ctf is None:
        pytest.skip(f"{path} has no .SUNW_ctf")
    functions = [f for f in kernel.symbols.functions() if len(kernel.symbols.named(f.name)) == 1]
    compared = 0
    for symbol in random.Random(SEED).sample(functions, 1000):
        one = dwarf.function(symbol.name, symbol.address)
        other = ctf.function(symbol.name, symbol.address)
        if one is None or other is None:
            continue
        compared += 1
        assert brief(one.result) == brief(other.result), f"{symbol.name}; KINST_SEED={SEED}"
        assert ([brief(p.type) for p in one.parameters] == [brief(p.type) for p in other.parameters]
                ), f"{symbol.name}; KINST_SEED={SEED}"
    assert compared > 500


def brief(kind):
    kind = strip(kind)
    if isinstance(kind, Integer):
        return ("integer", kind.size)
    if isinstance(kind, Structure):
        return (kind.kind, kind.name, kind.size)
    return type(kind).__name__


@pytest.mark.parametrize("arch", ARCHES)
def test_a_function_with_a_changed_calling_convention_is_not_called(arch):
    kernel = real_kernel(arch)
    known = Prototypes(kernel)
    function = next((f for f in kernel.symbols.functions()
                  if known.of(f.name, f.address) and known.changed(f.name, f.address)), None)
    assert function is not None
    count = len(known.of(function.name, function.address).parameters)
    call = f"{function.name}({', '.join('0' * count)})"
    refused(run("kinst", "call", "-k", str(kernel.path), call),
            f"{function.name}: the compiler has changed how the function takes its arguments")
