import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.elf import linked_image
from emu.elf.image import load_image
from emu.elf.kernel_module import ModuleFile
from emu.elf.linked_image import with_modules
from emu.elf.reader import read_file
from emu.guests.freebsd import records
from emu.host.errors import KinstError
from tests.elfwriter import EM, Elf
from tests.modulewriter import KernelModule

ARCHS = ["amd64", "arm64", "riscv64"]
BASE = {"amd64": 0xFFFFFFFF80200000, "arm64": 0xFFFF000000000000, "riscv64": 0xFFFFFFC000000000}


def kernel(tmp_path, arch, symbols=("panic",), version=1500068):
    base = BASE[arch]
    found = [("start", base, 16, 2), ("osreldate", base + 0x80, 4, 1)]
    found += [(name, base + 0x20 + 8 * i, 8, 2) for i, name in enumerate(symbols)]
    data = bytearray(0x100)
    struct.pack_into("<I", data, 0x80, version)
    path = tmp_path / "kernel"
    path.write_bytes(Elf(arch, base, [(base, bytes(data), 0x100)], found).build())
    return load_image(path)


def module(tmp_path, name="mine", **more):
    path = tmp_path / f"{name}.ko"
    path.write_bytes(KernelModule(name, **more).build())
    return path


@pytest.mark.parametrize("arch", ARCHS)
def test_a_module_is_placed_after_the_kernel_and_relocated(tmp_path, arch):
    image = kernel(tmp_path, arch)
    linked = with_modules(image, [module(tmp_path, arch=arch)])
    (mine,) = linked.modules
    assert mine.address % 4096 == 0 and mine.address >= BASE[arch] + 0x100
    f, variable = linked.symbols.find("f"), linked.symbols.find("variable")
    assert f.module == "mine.ko" and f.module_name == "mine"
    assert linked.symbols.find("start").module == "kernel"
    assert int.from_bytes(linked.virtual_to_file(variable.address, 8), "little") == f.address
    panic = linked.symbols.find("panic").address
    if arch == "amd64":
        (distance,) = struct.unpack("<i", linked.virtual_to_file(f.address + 2, 4))
        assert f.address + 6 + distance == panic
    else:
        assert int.from_bytes(linked.virtual_to_file(f.address + 8, 8), "little") == panic
    assert linked.symbols.where(f.address + 3) == "f+0x3"
    assert linked.holds_code(f.address) and not linked.holds_code(variable.address)
    assert linked.module_at(f.address) is mine and linked.module_at(BASE[arch]) is None
    assert linked.identity != image.identity == linked.kernel_identity
    assert "f" in [symbol.name for symbol in linked.symbols.functions()]


def test_module_sections_are_passed_to_the_kernel_in_order_with_addresses(tmp_path):
    linked = with_modules(kernel(tmp_path, "amd64"), [module(tmp_path)])
    file = linked.modules[0].file
    assert file.relocatable
    heads = list(struct.iter_unpack("<IIQQQQIIQQ", file.headers(0x1000)))
    loaded = [head for head in heads if head[3]]
    assert [head[3] for head in loaded[:2]] == [0x1000, 0x1000 + file.sections[2].at]
    assert all(head[3] % head[8] == 0 for head in loaded)
    assert not heads[0][3]
    text = records.records(linked, 0, 0, [], lambda virtual: virtual)
    kinds = []
    at = 0
    while True:
        kind, size = struct.unpack_from("<II", text, at)
        kinds.append(kind)
        if not kind:
            break
        at += 8 + size + -size % 8
    assert kinds == [1, 2, 3, 4, 1, 2, 3, 4, 0x8002, 0x8009, 0]
    assert b"elf obj module\0" in text and at + 8 == len(text)


def test_dependencies_are_found_beside_the_kernel_and_loaded_first(tmp_path):
    image = kernel(tmp_path, "amd64")
    module(tmp_path, "base", symbols=[("offered", 1, 0)])
    upper = module(tmp_path, "upper", outside="offered", depends=(("base", 1, 1),))
    linked = with_modules(image, [upper])
    assert [m.name for m in linked.modules] == ["base.ko", "upper.ko"]
    offered = linked.symbols.find("offered").address
    f = next(s for s in linked.symbols.named("f") if s.module == "upper.ko").address
    (distance,) = struct.unpack("<i", linked.virtual_to_file(f + 2, 4))
    assert f + 6 + distance == offered


@pytest.mark.parametrize("arch, more, says", [
    ("amd64", {"outside": "nowhere"}, "built for a different kernel: the symbol 'nowhere'"),
    ("amd64", {"depends": (("kernel", 1600000, 1600999),)},
     "is for kernels of version 1600000 to 1600999"),
    ("amd64", {"depends": (("absent", 1, 1),)}, "depends on the module 'absent'"),
    ("amd64", {"depends": (("mine", 1, 1),)}, None),
    ("riscv64", {}, "made for RISCV, but the kernel"),
])
def test_a_module_that_cannot_be_loaded_is_refused_with_one_line(tmp_path, arch, more, says):
    image = kernel(tmp_path, "amd64")
    path = module(tmp_path, arch=arch, **more)
    if says is None:
        assert len(with_modules(image, [path]).modules) == 1
        return
    with pytest.raises(KinstError, match=says) as error:
        with_modules(image, [path])
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_modules_that_need_each_other_are_refused(tmp_path):
    image = kernel(tmp_path, "amd64")
    module(tmp_path, "one", depends=(("two", 1, 1),))
    two = module(tmp_path, "two", depends=(("one", 1, 1),))
    with pytest.raises(KinstError, match=r"circular dependency: two\.ko -> one\.ko -> two\.ko"):
        with_modules(image, [two])


def test_a_chain_of_too_many_modules_is_refused(tmp_path, monkeypatch):
    image = kernel(tmp_path, "amd64")
    module(tmp_path, "one")
    module(tmp_path, "two", depends=(("one", 1, 1),))
    three = module(tmp_path, "three", depends=(("two", 1, 1),))
    monkeypatch.setattr(linked_image, "MAX_MODULES", 3)
    assert len(with_modules(image, [three]).modules) == 3
    monkeypatch.setattr(linked_image, "MAX_MODULES", 2)
    with pytest.raises(KinstError, match="too many modules; at most 2 are allowed"):
        with_modules(image, [three])


@pytest.mark.parametrize("data, says", [
    (b"", "is empty"), (b"#!/bin/sh\n", "not a kernel module"),
    (KernelModule().build()[:200], "truncated"),
    (Elf().build(), "not a kernel module"),
])
def test_a_file_that_is_not_a_module_is_refused(tmp_path, data, says):
    path = tmp_path / "bad.ko"
    path.write_bytes(data)
    with pytest.raises(KinstError, match=says):
        ModuleFile(read_file(path))


GOOD = {arch: KernelModule(arch=arch).build() for arch in ARCHS}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ARCHS), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)),
                                        min_size=1, max_size=8), st.integers(0, 4000))
def test_a_mutated_module_is_loaded_or_refused_with_one_line(tmp_path_factory, arch, changes, cut):
    directory = tmp_path_factory.mktemp("module")
    raw = bytearray(GOOD[arch])
    for at, value in changes:
        raw[at % len(raw)] = value
    path = directory / "mine.ko"
    path.write_bytes(bytes(raw[: len(raw) - cut % len(raw) // 4]))
    image = kernel(directory, arch)
    try:
        linked = with_modules(image, [path])
        (*_others, mine) = linked.modules
        assert len(mine.memory) == mine.file.size
        list(linked.symbols.functions())
    except KinstError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("arch", ["arm64", "riscv64"])
def test_a_relocatable_module_is_refused_where_kernels_load_shared_objects(tmp_path, arch):
    path = module(tmp_path, arch="amd64")
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, 18, EM[arch])  # e_machine of the ELF header
    path.write_bytes(content)
    with pytest.raises(KinstError, match=f"relocatable file, but kernels for {arch} load shared"):
        with_modules(kernel(tmp_path, arch), [path])
