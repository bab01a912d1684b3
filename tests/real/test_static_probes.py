"""The kernel's linker sets, read once more by pyelftools from its file."""

import struct

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from emu.freebsd.static_probes import static_probes
from images import boots
from tests.conftest import ARCHES, real_kernel

RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027, "EM_RISCV": 3}


class File:
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
        raise AssertionError(f"{at:#x} is in no segment")

    def word(self, at):
        return self.moved.get(at) or struct.unpack("<Q", self.read(at, 8))[0]

    def text(self, at):
        return self.read(at, 300).partition(b"\0")[0].decode()

    def members(self, name):
        section = self.sections[f"set_sdt_{name}_set"]
        return range(section["sh_addr"], section["sh_addr"] + section["sh_size"], 8)


@pytest.mark.parametrize("arch", ARCHES)
def test_every_probe_that_the_kernel_declares_is_known_with_its_arguments_and_tracepoints(arch):
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
