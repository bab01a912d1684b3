"""Tests that the files which a process has mapped are read from structures like the kernel's."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.stacks import mapped_files
from dtrace.stacks.mapped_files import MappedFile, MappedFiles
from dwarf.members import MemberError
from emu.guests.registry import FREEBSD
from emu.host.errors import MemoryAccessError

MEMBERS = FREEBSD["amd64"].programs.maps
VNODE, OTHER = 3, 1  # kinds of objects


class Kernel:
    """Memory of words at the offsets that ``offset_of`` returns."""

    def __init__(self):
        self.offsets, self.words, self.next = {}, {}, 1 << 20

    def offset_of(self, _types, structure, member):
        return self.offsets.setdefault((structure, member), 8 * len(self.offsets) + 8)

    def new(self):
        self.next += 4096
        return self.next

    def set(self, address, structure, member, value):
        self.words[address + self.offsets[f"struct {structure}", member]] = value

    def read(self, address, size):
        value = self.words.get(address, 0)
        return value[:size] if isinstance(value, bytes) else value.to_bytes(8, "little")[:size]

    def vnode(self, path, mounted=""):
        """Create a file and its directories; ``mounted`` is where its file system is."""
        root, mount = self.new(), self.new()
        self.set(root, "vnode", "v_vflag", 1)
        self.set(root, "vnode", "v_mount", mount)
        self.set(mount, "mount", "mnt_vnodecovered", self.vnode(mounted) if mounted else 0)
        at = root
        for part in path.strip("/").split("/"):
            name, file = self.new(), self.new()
            self.set(file, "vnode", "v_cache_dst.tqh_first", name)
            self.set(name, "namecache", "nc_dvp", at)
            self.set(name, "namecache", "nc_nlen", len(part))
            self.set(name, "namecache", "nc_name", part.encode())
            at = file
        return at

    def object(self, kind, handle=0, shadows=0, offset=0):
        one = self.new()
        for member, value in (("type", kind), ("handle", handle), ("backing_object", shadows),
                              ("backing_object_offset", offset)):
            self.set(one, "vm_object", member, value)
        return one

    def map(self, header, entries, rng):
        """Link entries (start, end, offset, object) as a random threaded tree."""
        made = [self.new() for _ in entries]
        for at, values in zip(made, entries, strict=True):
            for member, value in zip(("start", "end", "offset", "object"), values, strict=True):
                self.set(at, "vm_map_entry", member, value)
        self.set(header, "vm_map_entry", "start", 1 << 47)
        self.set(header, "vm_map_entry", "right", made[0] if made else header)
        self.set(header, "vm_map_entry", "left", made[-1] if made else header)

        def tree(low, high, before, after):
            if low == high:
                return None
            root = rng.randrange(low, high)
            at = made[root]
            self.set(at, "vm_map_entry", "left", tree(low, root, before, at) or before)
            self.set(at, "vm_map_entry", "right", tree(root + 1, high, at, after) or after)
            return at

        tree(0, len(made), header, header)


@pytest.fixture
def kernel(monkeypatch):
    made = Kernel()
    monkeypatch.setattr(mapped_files, "offset_of", made.offset_of)
    monkeypatch.setattr(mapped_files, "_enumerator", lambda *_names: VNODE)
    return made


def reader(kernel):
    files = MappedFiles(kernel, None, MEMBERS)
    process, space = kernel.new(), kernel.new()
    kernel.set(process, "proc", "p_vmspace", space)
    header = space + kernel.offsets["struct vmspace", "vm_map"] + (
        kernel.offsets["struct vm_map", "header"])
    return files, process, header


@pytest.mark.parametrize("seed", range(20))
def test_all_mappings_of_files_are_found_in_any_shape_of_the_tree(kernel, seed):
    rng = random.Random(seed)
    files, process, header = reader(kernel)
    vnodes = {path: kernel.vnode(path) for path in ("/bin/ls", "/lib/libc.so.7", "/x")}
    entries, wanted = [], []
    for n in range(rng.randrange(1, 60)):
        start, offset = 0x10000 * (n + 1), 4096 * rng.randrange(4)
        path = rng.choice(["", *vnodes])
        one = kernel.object(VNODE, vnodes[path]) if path else kernel.object(OTHER)
        shadowed = 0
        for _ in range(rng.randrange(3)):  # private mappings shadow the file
            more = 4096 * rng.randrange(3)
            one, shadowed = kernel.object(OTHER, 7, one, more), shadowed + more
        entries.append((start, start + 4096, offset, one))
        if path:
            wanted.append(MappedFile(start, start + 4096, offset + shadowed, path))
    kernel.map(header, entries, rng)
    assert files.of(process) == wanted


def test_a_path_leads_through_mounted_file_systems(kernel):
    files, process, header = reader(kernel)
    inner = kernel.vnode("prog/a.out", mounted="/files")
    nameless = kernel.new()
    lost = kernel.vnode("lost")
    directory = kernel.words[lost + kernel.offsets["struct vnode", "v_cache_dst.tqh_first"]]
    kernel.set(directory, "namecache", "nc_dvp", nameless)  # the directory is not in the cache
    objects = [kernel.object(VNODE, one) for one in (inner, nameless, lost)]
    kernel.map(header, [(n << 12, n + 1 << 12, 0, one) for n, one in enumerate(objects, 1)],
               random.Random(1))
    assert [one.path for one in files.of(process)] == ["/files/prog/a.out", "lost"]
    assert files.of(kernel.new()) == []  # a kernel process has no address space


@given(st.randoms(use_true_random=False))
def test_damaged_structures_end_the_search(rng):
    class Memory(Kernel):
        def read(self, address, size):
            if rng.random() < 0.001:
                raise MemoryAccessError("not mapped")
            return rng.choice((4096, 8192, 1 << 20, VNODE, address & -4096)).to_bytes(8, "little")[
                :size]

    memory = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_files, "offset_of", memory.offset_of)
        patch.setattr(mapped_files, "_enumerator", lambda *_names: VNODE)
        files = MappedFiles(memory, None, MEMBERS)
    try:
        assert len(files.of(4096)) <= mapped_files.MOST_STEPS
    except MemoryAccessError as error:
        assert "\n" not in str(error)


def test_a_kernel_whose_types_lack_a_member_has_no_maps(monkeypatch):
    def missing(_types, structure, member):
        raise MemberError(f"{structure} has no member {member}")

    monkeypatch.setattr(mapped_files, "offset_of", missing)
    assert mapped_files.mapped_files(Kernel(), object(), MEMBERS) is None
    assert mapped_files.mapped_files(Kernel(), None, MEMBERS) is None
    assert mapped_files.mapped_files(Kernel(), object(), None) is None
